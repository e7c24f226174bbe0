/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RACK (RFC 8985, 6): takes data for lost by its send time. The reordering window is how long a
 * hole may be due to reordering before it counts as a loss (6.2, steps 3 and 4).
 *
 * The RFC's window is a quarter of the minimum RTT. It grows by another quarter in each round trip
 * with a DSACK. Two events show the lateness of reordered segments earlier: a hole that is filled
 * without a retransmission, and the timestamp echo of an original after its retransmission. So
 * this window is the larger of a quarter of the minimum RTT and twice that lateness, plus the
 * RFC's steps.
 */
#include "harp/stack/tcp/tcp_rack.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_sndq.h"

enum {
  REO_PERSIST = 16, /* recoveries without a DSACK until the multiplier is 0 (6.2, step 4) */
  LATE_FADES = 8,   /* each recovery reduces reo_late by 1/LATE_FADES */
};

/* Returns the time since the record was sent, ns. */
static uint64_t age_of(const struct harp_tcp *tcp, const struct harp_record *record)
{
  uint64_t now = tcp->stack->now;
  return now > record->sent ? now - record->sent : 0;
}

/* Returns the reordering window, ns (RFC 8985, 6.2, step 4). */
static uint64_t reo_wnd(const struct harp_tcp *tcp)
{
  if (!tcp->rack.reordering_seen &&
      (tcp->recovery != RECOVERY_NONE || tcp->flight.sacked_out >= TCP_DUPTHRESH * tcp->snd.mss)) {
    return 0;
  }
  if (tcp->rtt.min == UINT64_MAX) {
    return 0;
  }
  uint64_t step = tcp->rtt.min / 4;
  uint64_t window = HARP_MAX(step, 2 * tcp->rack.reo_late) + tcp->rack.reo_multiplier * step;
  return HARP_MIN(window, tcp->rtt.srtt);
}

/* Returns how late a record arrived, ns, after later records were SACKed. age: of the record, ns.
 */
static uint64_t rack_late(const struct harp_tcp *tcp, uint64_t age)
{
  return age > tcp->rack.rtt ? age - tcp->rack.rtt : 1;
}

void tcp_rack_reordering_seen(struct harp_tcp *tcp, uint64_t late)
{
  if (!tcp->rack.reordering_seen) {
    tcp->rack.reordering_seen = true;
    COUNT(tcp->stack, tcp_reordering);
  }
  tcp->reorderings++;
  tcp->rack.reo_late = HARP_MAX(tcp->rack.reo_late, late);
}

void tcp_rack_original_acked_after_retransmit(struct harp_tcp *tcp)
{
  /* This ACK may answer the retransmission if it comes later than the minimum RTT. A paused host is
   * the likelier reason after a timeout. */
  uint64_t since_retransmission = age_of(tcp, tcp->flight.first);
  if (tcp->recovery == RECOVERY_FAST && since_retransmission < tcp->rtt.min) {
    tcp_rack_reordering_seen(tcp, tcp->rack.reo_waited + since_retransmission);
  }
}

/* The window grows once per round trip, because one wrong decision may cause many spurious
 * retransmissions. Rounds are measured by time: sequence numbers may wrap between two rare DSACKs.
 */
void tcp_rack_dsack_reported(struct harp_tcp *tcp)
{
  tcp_rack_reordering_seen(tcp, 0);
  tcp->rack.reo_persist = REO_PERSIST;
  if (tcp->stack->now < tcp->rack.dsack_round_end) {
    return;
  }
  tcp->rack.dsack_round_end = tcp->stack->now + tcp->rtt.srtt;
  if (tcp->rack.reo_multiplier < UINT8_MAX) {
    tcp->rack.reo_multiplier++;
  }
}

void tcp_rack_recovered(struct harp_tcp *tcp)
{
  tcp->rack.reo_late -= tcp->rack.reo_late / LATE_FADES;
  if (tcp->rack.reo_persist && --tcp->rack.reo_persist == 0) {
    tcp->rack.reo_multiplier = 0;
  }
}

/* age: of the record, ns. */
static void rack_delivered(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                           uint64_t age)
{
  if (record->sent > tcp->rack.sent ||
      (record->sent == tcp->rack.sent && seq_gt(end, tcp->rack.end))) {
    tcp->rack.sent = record->sent;
    tcp->rack.end = end;
    tcp->rack.rtt = age;
  }
}

void tcp_mark_lost(struct harp_tcp *tcp, struct harp_record *record)
{
  uint32_t length = record->end - record->seq;
  tcp_record_unlink(tcp, record);
  if (record->state == RECORD_RETRANSMITTED) {
    tcp->flight.retrans_out -= length;
  } else if (record->state == RECORD_IN_FLIGHT) {
    tcp->flight.lost_out += length;
  }
  record->state = RECORD_LOST;
  stack_event(tcp, HARP_EVENT_LOST, length - record->fin, record->seq - tcp->snd.iss - 1);
  tcp_record_queue_lost(tcp, record);
}

uint64_t tcp_rack_detect_loss(struct harp_tcp *tcp)
{
  if (tcp->rack.sent == 0 || !tcp->flight.oldest) {
    return TIMER_OFF;
  }
  uint64_t window = reo_wnd(tcp);
  uint64_t timeout = tcp->rack.rtt + window;
  struct harp_record *record = tcp->flight.oldest;
  while (record && (record->sent < tcp->rack.sent ||
                    (record->sent == tcp->rack.sent && seq_lt(record->end, tcp->rack.end)))) {
    if (record->sent + timeout > tcp->stack->now) {
      return record->sent + timeout;
    }
    struct harp_record *newer = record->newer;
    tcp->rack.reo_waited = window;
    tcp_mark_lost(tcp, record);
    record = newer;
  }
  return TIMER_OFF;
}

/* RFC 8985, 6.2, step 2: whether the ACK answers an earlier transmission of the record, not the
 * latest one. The timestamp echo decides, if there is one. It is older while a hole is open. The
 * elapsed time then decides: less than three quarters of SRTT is too short. The minimum RTT alone
 * is a weak bound when a queue stands, and ignoring a valid sample costs little. */
static bool is_answer_to_earlier(const struct harp_tcp *tcp, const struct harp_record *record,
                                 const struct harp_ack_result *result)
{
  uint64_t rtt = age_of(tcp, record);
  if (rtt < tcp->rtt.min) {
    return true;
  }
  if (result->timed) {
    return seq_lt(result->echo, tcp_timestamp_at(tcp, record->sent));
  }
  return rtt < tcp->rtt.srtt / 4 * 3;
}

void tcp_rack_update(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                     struct harp_ack_result *result)
{
  uint32_t length = end - record->seq;
  result->delivered += length;
  if (record->state != RECORD_IN_FLIGHT) {
    tcp->flight.lost_out -= length;
  }
  if (record->state == RECORD_RETRANSMITTED) {
    tcp->flight.retrans_out -= length;
  }
  uint64_t age = age_of(tcp, record);
  if (record->transmits == 1) {
    result->rtt = age;
    result->original |= record->state == RECORD_LOST;
    if (seq_lt(record->seq, tcp->flight.high_sacked)) {
      result->late = HARP_MAX(result->late, rack_late(tcp, age));
    }
  } else {
    result->retransmitted = true;
    if (is_answer_to_earlier(tcp, record, result)) {
      return;
    }
  }
  rack_delivered(tcp, record, end, age);
}
