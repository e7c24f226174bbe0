/* SPDX-License-Identifier: Apache-2.0 */
/* What an acknowledgement tells: what has arrived, how fast, and how much room there is. */
#include "harp/stack/stack_state.h"

/* RFC 6298, 2.3, with Linux's floor, which stands for the variation: a peer may hold an answer back
 * for as long, however long the round trip is. */
void tcp_set_rto(struct harp_tcp *tcp)
{
  uint64_t rto = tcp->srtt + HARP_MAX(4 * tcp->rttvar, tcp->rto_min);
  tcp->rto = HARP_MIN(rto, tcp->stack->config.rto_max_us * NS_PER_US);
}

/* RFC 6298, 2; with a sample per acknowledgement the gains stay those of one
 * per round trip closely enough (RFC 7323, appendix G). */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt)
{
  rtt = HARP_MAX(rtt, 1);
  if (tcp->srtt == 0) {
    tcp->srtt = rtt;
    tcp->rttvar = rtt / 2;
  } else {
    uint64_t error = rtt > tcp->srtt ? rtt - tcp->srtt : tcp->srtt - rtt;
    tcp->rttvar = (3 * tcp->rttvar + error) / 4;
    tcp->srtt = (7 * tcp->srtt + rtt) / 8;
  }
  tcp->min_rtt = HARP_MIN(tcp->min_rtt, rtt);
  tcp_set_rto(tcp);
}

/* RFC 8985, 6.2, step 2: whether the newest copy is not what arrived. The echo tells, but not
 * while a hole is open, for then it is of what came before that. So it goes by time; the shortest
 * round trip says little where a queue stands, and not to count an answer costs little. */
static bool is_answer_to_earlier(const struct harp_tcp *tcp, const struct harp_record *record,
                                 const struct harp_ack_result *result)
{
  uint64_t rtt = tcp_record_age(tcp, record);
  if (rtt < tcp->min_rtt) {
    return true;
  }
  if (result->timed) {
    return seq_lt(result->echo, tcp_timestamp_at(tcp, record->sent));
  }
  return rtt < tcp->srtt / 4 * 3;
}

void tcp_delivered(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                   struct harp_ack_result *result)
{
  uint32_t length = end - record->seq;
  result->delivered += length;
  if (record->lost) {
    tcp->lost_out -= length;
  }
  if (record->retransmitted) {
    tcp->retrans_out -= length;
  }
  if (record->transmits == 1) {
    result->rtt = tcp_record_age(tcp, record);
    result->original |= record->lost;
    result->late = HARP_MAX(result->late, tcp_rack_late(tcp, record));
  }
  result->copies |= record->transmits > 1;
  if (record->transmits == 1 || !is_answer_to_earlier(tcp, record, result)) {
    tcp_rack_delivered(tcp, record, end);
  }
}

/* Takes out what lies below ack. */
static void ack_records(struct harp_tcp *tcp, uint32_t ack, struct harp_ack_result *result)
{
  while (tcp->records && seq_lt(tcp->records->seq, ack)) {
    struct harp_record *record = tcp->records;
    uint32_t end = seq_min(record->end, ack);
    if (record->sacked) {
      tcp->sacked_out -= end - record->seq;
    } else {
      tcp_delivered(tcp, record, end, result);
    }
    if (end == record->end) {
      tcp_record_free(tcp, record);
    } else {
      record->seq = end;
      record->reference = tcp_sndq_seek(record->reference, end);
    }
  }
  if (result->copies) {
    result->rtt = 0; /* what lay behind the hole waited for it to be filled */
  }
}

void tcp_update_window(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (seq_lt(segment->ack, tcp->snd_una)) {
    return; /* old news, whatever its number: behind a lost segment the newest may come first */
  }
  /* RFC 9293, 3.10.7.4: from the newest segment only. That is also one that acknowledges more,
   * though another overtook it: the window counts from what is acknowledged, and the old one
   * would reach beyond what the peer has offered. */
  if (seq_gt(segment->ack, tcp->snd_una) || seq_lt(tcp->snd_wl1, segment->seq) ||
      (tcp->snd_wl1 == segment->seq && seq_le(tcp->snd_wl2, segment->ack))) {
    uint32_t window = segment->window << tcp->snd_wscale;
    if (tcp->snd_wnd == 0 && window && tcp->window_limited) {
      /* Open again: what was only a probe goes out for good. */
      tcp->backoff = 0;
      if (tcp->records && !tcp->records->sacked && !tcp->records->lost) {
        tcp_mark_lost(tcp, tcp->records);
      }
    }
    if (tcp->snd_wnd && !window) {
      stack_event(tcp, HARP_EVENT_WINDOW_CLOSED, 0, segment->ack - tcp->iss - 1);
    }
    bool turned = !tcp->snd_wnd != !window;
    tcp->snd_wnd = window;
    tcp->max_snd_wnd = HARP_MAX(tcp->max_snd_wnd, window);
    tcp->snd_edge = seq_max(tcp->snd_edge, segment->ack + window);
    tcp->snd_wl1 = segment->seq;
    tcp->snd_wl2 = segment->ack;
    if (turned) {
      tcp_arm_tail_probe(tcp); /* off when it closes, and on again when it opens */
    }
  }
}

static void advance_una(struct harp_tcp *tcp, uint32_t ack)
{
  tcp->snd_una = ack;
  tcp->high_sacked = seq_max(tcp->high_sacked, ack);
  tcp->backoff = 0;
  tcp->last_progress = tcp->stack->now;
  if (tcp->timers[TIMER_USER] != TIMER_OFF) {
    bool open = ack != tcp->snd_end + tcp->fin_sent;
    tcp_timer_set(tcp, TIMER_USER,
                  open ? tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS : TIMER_OFF);
  }
  tcp_arm_rto(tcp);
}

/* The Eifel detection (RFC 3522, 3.2): what fills the hole was sent before the first
 * retransmission, so that one was needless. Only a copy in a later tick can be told apart. */
static bool is_first_copy(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  return tcp->undo_possible && tcp->undo_retransmits && tcp->records->transmits > 1 &&
         result->timed && seq_lt(result->echo, tcp->undo_stamp);
}

void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t una = tcp->snd_una;
  uint32_t window = tcp->snd_wnd;
  struct harp_ack_result result = {.una_before = una, .was_limited = tcp->cwnd_limited};
  tcp_update_window(tcp, segment);
  bool advances = seq_gt(segment->ack, una);
  if (!tcp->sack && segment->ack == una && tcp->records && segment->length == 0 && window &&
      tcp->snd_wnd == window && !(segment->flags & FLAG_FIN)) {
    /* RFC 5681, 2: a duplicate; some segment has left the network. */
    result.duplicate = true;
    result.delivered = tcp->mss;
    tcp_recovery_on_ack(tcp, &result);
    tcp_mark_dirty(tcp);
    return;
  }
  if (!advances && tcp->snd_wnd == 0) {
    /* A living peer that has no room: no reason to give it up. */
    tcp->last_progress = tcp->stack->now;
  }
  if (!advances && segment->sack_count == 0) {
    if (tcp->snd_nxt != tcp->snd_end || tcp->lost_first || tcp->ops->pull) {
      tcp_mark_dirty(tcp);
    }
    return;
  }
  if (advances) {
    result.timed = tcp->timestamps && segment->has_timestamp;
    result.echo = segment->echo;
    result.first_copy = is_first_copy(tcp, &result);
    if (result.first_copy) {
      tcp_rack_original_acked_after_retransmit(tcp);
    }
    ack_records(tcp, segment->ack, &result);
    advance_una(tcp, segment->ack);
  }
  if (tcp->sack && segment->sack_count) {
    tcp_sack_input(tcp, segment, &result);
  }
  if (result.late && !result.copies) {
    tcp_rack_reordering_seen(tcp, result.late);
  }
  if (result.rtt) {
    tcp_rtt_sample(tcp, result.rtt);
  }
  tcp_recovery_on_ack(tcp, &result);
  tcp_mark_dirty(tcp);
  if (advances) {
    uint32_t bytes = segment->ack - una;
    if (tcp->fin_sent && segment->ack == tcp->snd_nxt) {
      bytes--; /* the FIN is nobody's byte */
    }
    tcp_sndq_release(tcp, segment->ack);
    tcp->bytes_out += bytes;
    if (bytes && tcp->ops->acked) {
      tcp->ops->acked(tcp->user, tcp, bytes);
    }
  }
}
