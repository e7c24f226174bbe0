/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss detection and recovery: when recovery begins and ends (RFC 8985, or RFC 6582 without SACK),
 * and recovery after an RTO (RFC 6298).
 */

#include "harp/stack/tcp/tcp_recovery.h"

#include "harp/stack/flow.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_prr.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_sack.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_tlp.h"
#include "harp/stack/tcp/tcp_undo.h"

/* Whether duplicate ACKs may answer needless retransmissions of the last recovery: they acknowledge
 * exactly its end (RFC 6582, 3.2). With timestamps the spurious timeout has been undone before. */
static bool answers_last_recovery(const struct harp_tcp *tcp)
{
  return !tcp->timestamps && tcp->snd.una == tcp->recovery_point;
}

/* Without SACK: the third duplicate ACK shows that the first segment is lost (RFC 5681, 3.2). A
 * partial ACK in recovery shows that the next one is lost (RFC 6582, 3.2). */
static void detect_loss_by_duplicates(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  bool advanced = tcp->snd.una != result->una_before;
  struct harp_record *head = tcp->flight.first;
  bool partial = advanced && tcp->recovery == RECOVERY_FAST &&
                 seq_lt(tcp->snd.una, tcp->recovery_point);
  tcp->duplicates = advanced ? 0 : tcp->duplicates + result->duplicate;
  bool third = result->duplicate && tcp->duplicates == TCP_DUPTHRESH &&
               tcp->recovery == RECOVERY_NONE && !answers_last_recovery(tcp);
  if (!head || head->state != RECORD_IN_FLIGHT || !(partial || third)) {
    return;
  }
  if (head->end - head->seq > tcp->snd.mss) {
    tcp_record_split(tcp, head, head->seq + tcp->snd.mss);
  }
  tcp_mark_lost(tcp, head);
}

static void enter_fast_recovery(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  COUNT(tcp->stack, tcp_fast_recoveries);
  stack_event(tcp, HARP_EVENT_RECOVERY, tcp->cwnd >> 10, tcp->snd.nxt - tcp->snd.iss - 1);
  tcp_undo_remember(tcp);
  tcp->recovery = RECOVERY_FAST;
  tcp->recovery_point = tcp->snd.nxt;
  tcp->tlp.reacted = true;
  tcp_cwnd_enter_recovery(tcp);
  tcp_prr_begin(tcp, result);
}

static void leave_recovery(struct harp_tcp *tcp)
{
  if (tcp->recovery == RECOVERY_FAST) {
    tcp_cwnd_leave_recovery(tcp);
  }
  tcp_rack_recovered(tcp);
  tcp->recovery = RECOVERY_NONE;
  tcp_undo_recovery_ended(tcp);
}

static void arm_after_detection(struct harp_tcp *tcp, uint64_t again)
{
  tcp_timer_set(tcp, TIMER_RACK, again);
  if (again != TIMER_OFF) {
    tcp_timer_stop(tcp, TIMER_TLP);
  } else {
    tcp_arm_tail_probe(tcp);
  }
}

/* cwnd outside of fast recovery. */
static void grow(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (tcp->snd.una != result->una_before) {
    tcp_cwnd_on_ack(tcp, result);
  } else if (tcp->sack) { /* a duplicate ACK does not change cwnd (RFC 5681, 3.2) */
    tcp_cwnd_grow_later(tcp, result->delivered);
  }
}

/* Not inline: the usual acknowledgement saves no registers for it. */
__attribute__((noinline)) static void detect_and_recover(struct harp_tcp *tcp,
                                                         const struct harp_ack_result *result)
{
  tcp_undo_if_spurious(tcp, result);
  bool of_probe = tcp->tlp.outstanding && tcp->tlp.is_retransmission;
  if (tcp->tlp.outstanding) {
    tcp_tlp_on_ack(tcp, result);
  }
  if (result->dsack && !of_probe) {
    tcp_undo_on_dsack(tcp, result);
  }
  uint64_t again = TIMER_OFF;
  uint32_t flight = tcp_in_flight(tcp);
  if (tcp->sack) {
    again = tcp_rack_detect_loss(tcp);
  } else {
    detect_loss_by_duplicates(tcp, result);
  }
  if (tcp->recovery != RECOVERY_NONE && seq_ge(tcp->snd.una, tcp->recovery_point)) {
    leave_recovery(tcp);
  }
  if (tcp->recovery == RECOVERY_NONE && tcp->flight.lost_first) {
    enter_fast_recovery(tcp, result);
  }
  if (tcp->recovery == RECOVERY_FAST) {
    tcp_prr_on_ack(tcp, result, flight - tcp_in_flight(tcp));
  } else {
    grow(tcp, result);
  }
  arm_after_detection(tcp, again);
}

/* Whether no data is in flight or lost, and no recovery or probe has to end. detect_and_recover
 * would then only grow cwnd and stop timers. */
static bool is_quiet(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  return tcp->sack && !tcp->flight.oldest && !tcp->flight.lost_first &&
         tcp->recovery == RECOVERY_NONE && !tcp->tlp.outstanding && !result->dsack;
}

void tcp_recovery_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!is_quiet(tcp, result)) {
    detect_and_recover(tcp, result);
    return;
  }
  grow(tcp, result);
  tcp_timer_stop(tcp, TIMER_RACK);
  tcp_timer_stop(tcp, TIMER_TLP);
}

void tcp_recovery_on_rto(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_rto_fired);
  stack_event(tcp, HARP_EVENT_TIMEOUT, tcp->backoff, tcp->snd.una - tcp->snd.iss - 1);
  if (tcp->flight.first->state == RECORD_SACKED) {
    tcp_sack_forget(tcp); /* SACKed, but not acknowledged: the peer has reneged */
  }
  /* Retransmit in sequence order (RFC 6298, 5.4), records that were lost earlier included. */
  for (struct harp_record *record = tcp->flight.first; record; record = record->next) {
    if (record->state != RECORD_SACKED) {
      tcp_mark_lost(tcp, record);
    }
  }
  if (tcp->recovery != RECOVERY_RTO) {
    tcp_undo_remember(tcp);
    tcp_cwnd_enter_recovery(tcp);
  }
  tcp->recovery = RECOVERY_RTO;
  tcp->recovery_point = tcp->snd.nxt;
  tcp_cwnd_on_rto(tcp);
  tcp_tlp_cancel(tcp);
  tcp_timer_stop(tcp, TIMER_RACK);
}

void tcp_recovery_on_rack_timer(struct harp_tcp *tcp)
{
  struct harp_ack_result nothing = {.una_before = tcp->snd.una};
  tcp_recovery_on_ack(tcp, &nothing);
  tcp_mark_dirty(tcp);
}
