/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is lost: RACK-TLP (RFC 8985), the retransmission timeout (RFC 6298), and
 * taking back a reaction that a DSACK (RFC 3708) or an echo (RFC 3522) shows to
 * be wrong.
 */
#include "harp/stack/stack_state.h"

enum { PEER_DELAYED_ACK_MS = 200 }; /* what a lone segment may wait for (RFC 8985, 7.2) */
/* Scheduling noise of two busy hosts; a probe before that is mostly needless.
 * Others than HARP hosts may hold an acknowledgement back until their reader
 * has come to read: Linux's own senders grant them two ticks, 8 ms. */
#define PROBE_FLOOR_HARP_PEER (2 * NS_PER_MS)
#define PROBE_FLOOR (8 * NS_PER_MS)

void tcp_rack_delivered(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end)
{
  if (record->sent > tcp->rack_sent ||
      (record->sent == tcp->rack_sent && seq_gt(end, tcp->rack_end))) {
    tcp->rack_sent = record->sent;
    tcp->rack_end = end;
    tcp->rack_rtt = tcp_record_age(tcp, record);
  }
}

void tcp_mark_lost(struct harp_tcp *tcp, struct harp_record *record)
{
  uint32_t length = record->end - record->seq;
  tcp_record_unlink(tcp, record);
  if (record->retransmitted) {
    tcp->retrans_out -= length;
  }
  if (!record->lost) {
    tcp->lost_out += length;
  }
  record->lost = true;
  record->retransmitted = false;
  tcp_record_queue_lost(tcp, record);
}

/* Marks what was sent well before something that has arrived (6.2, step 5).
 * Returns when to look again; TIMER_OFF: no need. */
static uint64_t detect_loss(struct harp_tcp *tcp)
{
  if (tcp->rack_sent == 0) {
    return TIMER_OFF;
  }
  uint64_t window = tcp_rack_reo_wnd(tcp);
  uint64_t patience = tcp->rack_rtt + window;
  struct harp_record *record = tcp->oldest;
  while (record && (record->sent < tcp->rack_sent ||
                    (record->sent == tcp->rack_sent && seq_lt(record->end, tcp->rack_end)))) {
    if (record->sent + patience > tcp->stack->now) {
      return record->sent + patience;
    }
    struct harp_record *newer = record->newer;
    tcp->reo_waited = window;
    tcp_mark_lost(tcp, record);
    record = newer;
  }
  return TIMER_OFF;
}

/* Without SACK: the third duplicate acknowledgement tells of a hole at the
 * head (RFC 5681, 3.2), a partial one in recovery of the next (RFC 6582, 3.2). */
static void detect_loss_by_duplicates(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  bool advanced = tcp->snd_una != result->una_before;
  struct harp_record *head = tcp->records;
  bool partial = advanced && tcp->recovery == RECOVERY_FAST &&
                 seq_lt(tcp->snd_una, tcp->recovery_point);
  tcp->duplicates = advanced ? 0 : tcp->duplicates + result->duplicate;
  bool third = result->duplicate && tcp->duplicates == TCP_DUPTHRESH &&
               tcp->recovery == RECOVERY_NONE;
  if (!head || head->lost || !(partial || third)) {
    return;
  }
  if (head->end - head->seq > tcp->mss) {
    tcp_record_split(tcp, head, head->seq + tcp->mss);
  }
  tcp_mark_lost(tcp, head);
}

static void remember_for_undo(struct harp_tcp *tcp)
{
  tcp->undo_cwnd = tcp->cwnd;
  tcp->undo_ssthresh = tcp->ssthresh;
  tcp->undo_retransmits = 0;
  tcp->undo_start = tcp->snd_una;
  tcp->undo_possible = true;
  tcp->growth_due = 0;
}

static void enter_fast_recovery(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  COUNT(tcp->stack, tcp_fast_recoveries);
  stack_event(tcp, HARP_EVENT_RECOVERY, tcp->cwnd >> 10, tcp->snd_nxt - tcp->iss - 1);
  remember_for_undo(tcp);
  tcp->recovery = RECOVERY_FAST;
  tcp->recovery_point = tcp->snd_nxt;
  tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
  tcp_prr_begin(tcp, result);
}

static void leave_recovery(struct harp_tcp *tcp)
{
  if (tcp->recovery == RECOVERY_FAST) {
    tcp->cwnd = tcp->ssthresh;
  }
  tcp_rack_recovered(tcp);
  tcp->recovery = RECOVERY_NONE;
  tcp->undo_end = tcp->snd_nxt;
  tcp->undo_deadline = tcp->stack->now + tcp->rto;
}

static void grow(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  uint32_t acked = result->delivered + tcp->growth_due;
  tcp->growth_due = 0;
  if (!result->was_limited && tcp->recovery == RECOVERY_NONE) {
    return; /* not in full use: it has proven nothing (RFC 7661) */
  }
  if (tcp->cwnd < tcp->ssthresh) {
    uint32_t part = HARP_MIN(acked, tcp->ssthresh - tcp->cwnd);
    bool first = tcp->ssthresh == UINT32_MAX;
    uint32_t growth = first ? hystart_growth(tcp, part, result->rtt) : part;
    tcp->cwnd += HARP_MIN(growth, (1u << 30) - tcp->cwnd);
    acked -= part;
  }
  if (acked && tcp->cwnd >= tcp->ssthresh) {
    tcp->cc.ops->on_ack(tcp, acked);
  }
}

static void undo(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_undos);
  tcp->cwnd = HARP_MAX(tcp->cwnd, tcp->undo_cwnd);
  tcp->ssthresh = HARP_MAX(tcp->ssthresh, tcp->undo_ssthresh);
  tcp->cc.ops->on_undo(tcp);
  tcp->undo_possible = false;
  tcp->recovery = RECOVERY_NONE;
}

/* Nothing was lost but time (the peer's host was busy): the rest of that flight is on its way
 * too. It was sent before all that is in flight, and so stands before it. */
static void timeout_was_spurious(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_spurious);
  for (struct harp_record *record = tcp->lost_first; record; record = record->newer) {
    record->lost = false;
    tcp->lost_out -= record->end - record->seq;
  }
  if (tcp->lost_first) {
    tcp->lost_last->newer = tcp->oldest;
    *(tcp->oldest ? &tcp->oldest->older : &tcp->newest) = tcp->lost_last;
    tcp->oldest = tcp->lost_first;
    tcp->lost_first = tcp->lost_last = NULL;
  }
  undo(tcp);
}

/* Whether the acknowledgement shows that recovery began without need, in time: after a timeout
 * by what was never sent again (RFC 5682, with SACK), always by timestamps (RFC 3522; in fast
 * recovery when nothing else that was sent again is still out, RFC 4015). */
static void undo_if_spurious(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->undo_possible) {
    return;
  }
  if (tcp->recovery == RECOVERY_RTO && (result->first_copy || (result->original && tcp->sack))) {
    timeout_was_spurious(tcp);
  } else if (tcp->recovery == RECOVERY_FAST && result->first_copy && tcp->retrans_out == 0) {
    COUNT(tcp->stack, tcp_spurious);
    undo(tcp);
  }
}

/* What a DSACK tells of was sent again in this recovery, or in the one that has just ended. */
static bool is_of_recovery(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (tcp->recovery == RECOVERY_NONE &&
      (seq_gt(result->dsack_end, tcp->undo_end) || tcp->stack->now > tcp->undo_deadline)) {
    return false;
  }
  return seq_ge(result->dsack_end - result->dsack, tcp->undo_start);
}

static void duplicate_reported(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  COUNT(tcp->stack, tcp_spurious);
  tcp_rack_dsack_reported(tcp);
  if (tcp->undo_possible && tcp->undo_retransmits && is_of_recovery(tcp, result)) {
    tcp->undo_retransmits -= HARP_MIN(tcp->undo_retransmits, result->dsack);
    if (tcp->undo_retransmits == 0) {
      undo(tcp);
    }
  }
}

/* The end of a tail loss probe's episode (RFC 8985, 7.4). Of a copy an acknowledgement
 * of exactly its end may be of the original, and a DSACK will tell. */
static void probe_answered(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->probe_is_copy) {
    tcp->probe_outstanding = seq_lt(tcp->snd_una, tcp->probe_end);
    return;
  }
  bool beyond = seq_gt(tcp->snd_una, tcp->probe_end);
  if (!beyond && !(tcp->snd_una == tcp->probe_end && result->dsack)) {
    return;
  }
  tcp->probe_outstanding = false;
  if (!result->dsack && tcp->recovery == RECOVERY_NONE) {
    /* The probe itself repaired a loss, which nothing else will notice. */
    tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
    tcp->cwnd = HARP_MIN(tcp->cwnd, tcp->ssthresh);
  }
}

void tcp_arm_tail_probe(struct harp_tcp *tcp)
{
  /* Into a closed window only the retransmission timer sends, as the persist timer. */
  bool useful = tcp->sack && tcp->recovery == RECOVERY_NONE && tcp->oldest && tcp->snd_wnd &&
                !tcp->sacked_out && !tcp->lost_out && !tcp->probe_outstanding && tcp->srtt;
  if (!useful) {
    if (tcp->loss_timer_is_probe) {
      tcp_timer_set(tcp, TIMER_LOSS, TIMER_OFF);
    }
    return;
  }
  uint64_t wait = HARP_MAX(2 * tcp->srtt, tcp->harp_peer ? PROBE_FLOOR_HARP_PEER : PROBE_FLOOR);
  if (!tcp->harp_peer && tcp->snd_nxt - tcp->snd_una <= tcp->mss) {
    wait += PEER_DELAYED_ACK_MS * NS_PER_MS;
  }
  uint64_t when = tcp->stack->now + wait;
  tcp->loss_timer_is_probe = true;
  tcp_timer_set(tcp, TIMER_LOSS, when < tcp->timers[TIMER_RETRANSMIT] ? when : TIMER_OFF);
}

static void arm_after_detection(struct harp_tcp *tcp, uint64_t again)
{
  if (again != TIMER_OFF) {
    tcp->loss_timer_is_probe = false;
    tcp_timer_set(tcp, TIMER_LOSS, again);
    return;
  }
  if (!tcp->loss_timer_is_probe) {
    tcp_timer_set(tcp, TIMER_LOSS, TIMER_OFF);
  }
  tcp_arm_tail_probe(tcp);
}

void tcp_recovery_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  bool advanced = tcp->snd_una != result->una_before;
  undo_if_spurious(tcp, result);
  bool of_probe = tcp->probe_outstanding && tcp->probe_is_copy;
  if (tcp->probe_outstanding) {
    probe_answered(tcp, result);
  }
  if (result->dsack && !of_probe) {
    duplicate_reported(tcp, result);
  }
  uint64_t again = TIMER_OFF;
  uint32_t flight = tcp_in_flight(tcp);
  if (tcp->sack) {
    again = detect_loss(tcp);
  } else {
    detect_loss_by_duplicates(tcp, result);
  }
  if (tcp->recovery != RECOVERY_NONE && seq_ge(tcp->snd_una, tcp->recovery_point)) {
    leave_recovery(tcp);
  }
  if (tcp->recovery == RECOVERY_NONE && tcp->lost_first) {
    enter_fast_recovery(tcp, result);
  }
  if (tcp->recovery == RECOVERY_FAST) {
    tcp_prr_on_ack(tcp, result, advanced && tcp_in_flight(tcp) == flight);
  } else if (advanced) {
    grow(tcp, result);
  } else if (tcp->sack) { /* a duplicate: the window stays as it is (RFC 5681, 3.2) */
    tcp->growth_due += result->delivered;
  }
  arm_after_detection(tcp, again);
}

/* The SACK of what comes last reveals every hole before it: new data, which nobody can have sent
 * in vain, or else the last segment again (RFC 8985, 7.3). */
static void tail_probe(struct harp_tcp *tcp)
{
  bool fresh = tcp_send_new_probe(tcp);
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  COUNT(tcp->stack, tcp_tail_probes);
  tcp->probe_outstanding = true;
  tcp->probe_is_copy = !fresh;
  tcp->probe_end = tcp->snd_nxt;
  if (!fresh) {
    struct harp_record *last = tcp->records_last;
    if (last->end - last->seq > tcp->mss) {
      struct harp_record *right = tcp_record_split(tcp, last, last->end - tcp->mss);
      last = right ? right : last;
    }
    tcp_mark_lost(tcp, last);
    tcp_retransmit(tcp, last, tcp->mss);
  }
  tcp_arm_rto(tcp);
}

void tcp_recovery_on_loss_timer(struct harp_tcp *tcp)
{
  if (tcp->loss_timer_is_probe) {
    if (tcp->records_last && !tcp->records_last->sacked && !tcp->records_last->lost) {
      tail_probe(tcp);
    }
    return;
  }
  struct harp_ack_result nothing = {.una_before = tcp->snd_una};
  tcp_recovery_on_ack(tcp, &nothing);
  tcp_mark_dirty(tcp);
}

void tcp_recovery_on_rto(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_rto_fired);
  stack_event(tcp, HARP_EVENT_TIMEOUT, tcp->backoff, tcp->snd_una - tcp->iss - 1);
  if (tcp->records->sacked) {
    tcp_sack_forget(tcp); /* sacked, yet not acknowledged */
  }
  /* The earliest goes first (RFC 6298, 5.4): what was lost before and waits, too, takes its turn.
   */
  for (struct harp_record *record = tcp->records; record; record = record->next) {
    if (!record->sacked) {
      tcp_mark_lost(tcp, record);
    }
  }
  if (tcp->recovery != RECOVERY_RTO) {
    remember_for_undo(tcp);
    tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
  }
  tcp->recovery = RECOVERY_RTO;
  tcp->recovery_point = tcp->snd_nxt;
  tcp->cwnd = tcp->mss;
  tcp->probe_outstanding = false;
  tcp_timer_set(tcp, TIMER_LOSS, TIMER_OFF);
}
