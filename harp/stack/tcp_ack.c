/* SPDX-License-Identifier: Apache-2.0 */
/* What an acknowledgement tells: what has arrived, how fast, and how much room there is. */
#include "harp/stack/internal.h"

/* RFC 6298, 2; with a sample per acknowledgement the gains stay those of one
 * per round trip closely enough (RFC 7323, appendix G). */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt) {
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
  uint64_t rto = tcp->srtt + 4 * tcp->rttvar;
  uint64_t max = tcp->stack->config.rto_max_us * NS_PER_US;
  tcp->rto = HARP_MIN(HARP_MAX(rto, tcp->rto_min), max);
}

/* Takes records below ack out; returns through rtt the sample of the newest
 * one that was sent only once (Karn), and through original whether one that a
 * timeout had given up arrived without being sent again. */
static uint32_t ack_records(struct harp_tcp *tcp, uint32_t ack, uint64_t *rtt, bool *original) {
  uint32_t delivered = 0;
  while (tcp->records && seq_lt(tcp->records->seq, ack)) {
    struct harp_record *record = tcp->records;
    uint32_t end = seq_min(record->end, ack);
    uint32_t length = end - record->seq;
    if (record->sacked) {
      tcp->sacked_out -= length;
    } else {
      delivered += length;
      if (record->lost) {
        tcp->lost_out -= length;
      }
      if (record->retransmitted) {
        tcp->retrans_out -= length;
      }
      if (record->transmits == 1) {
        *rtt = tcp->stack->now - record->sent;
        *original |= record->lost;
        if (seq_lt(record->seq, tcp->high_sacked) && !tcp->reordering_seen) {
          /* Never sent again, yet it arrived after something higher. */
          tcp->reordering_seen = true;
          COUNT(tcp->stack, tcp_reordering);
        }
      }
      tcp_rack_delivered(tcp, record, end);
    }
    if (end == record->end) {
      tcp_record_free(tcp, record);
    } else {
      record->seq = end;
      record->reference = tcp_sndq_seek(record->reference, end);
    }
  }
  return delivered;
}

static void mark_sacked(struct harp_tcp *tcp, struct harp_record *record, uint64_t *rtt) {
  uint32_t length = record->end - record->seq;
  tcp_record_unlink(tcp, record);
  if (record->lost) {
    tcp->lost_out -= length;
  }
  if (record->retransmitted) {
    tcp->retrans_out -= length;
  }
  if (record->transmits == 1) {
    *rtt = tcp->stack->now - record->sent;
    if (seq_lt(record->end, tcp->high_sacked) && !tcp->reordering_seen) {
      tcp->reordering_seen = true;
      COUNT(tcp->stack, tcp_reordering);
    }
  }
  record->lost = record->retransmitted = false;
  record->sacked = true;
  tcp->sacked_out += length;
  tcp_rack_delivered(tcp, record, record->end);
}

static uint32_t sack_block(struct harp_tcp *tcp, uint32_t start, uint32_t end, uint64_t *rtt) {
  uint32_t newly = 0;
  for (struct harp_record *record = tcp->records; record && seq_lt(record->seq, end);
       record = record->next) {
    if (record->sacked || seq_le(record->end, start)) {
      continue;
    }
    if (seq_lt(record->seq, start)) {
      if (!tcp_record_split(tcp, record, start)) {
        return newly;
      }
      continue; /* the right part comes next */
    }
    if (seq_gt(record->end, end) && !tcp_record_split(tcp, record, end)) {
      return newly;
    }
    newly += record->end - record->seq;
    mark_sacked(tcp, record, rtt);
  }
  return newly;
}

/* RFC 2883, 4: the first block repeats what is acknowledged, or lies in the second. */
static bool is_dsack(const struct harp_segment *segment) {
  if (seq_le(segment->sack[0].end, segment->ack)) {
    return true;
  }
  return segment->sack_count > 1 && seq_ge(segment->sack[0].start, segment->sack[1].start) &&
         seq_le(segment->sack[0].end, segment->sack[1].end);
}

static void sack_input(struct harp_tcp *tcp, const struct harp_segment *segment,
                       struct harp_ack_result *result, uint64_t *rtt) {
  uint32_t highest = tcp->high_sacked;
  for (int i = 0; i < segment->sack_count; i++) {
    uint32_t start = segment->sack[i].start, end = segment->sack[i].end;
    bool sane = seq_lt(start, end) && end - start <= (1u << 30) && seq_le(end, tcp->snd_nxt);
    if (i == 0 && sane && is_dsack(segment)) {
      result->dsack = end - start;
      continue;
    }
    if (!sane || seq_lt(start, tcp->snd_una)) {
      COUNT(tcp->stack, tcp_sack_ignored);
      continue;
    }
    COUNT(tcp->stack, tcp_sack_in);
    uint32_t newly = sack_block(tcp, start, end, rtt);
    result->delivered += newly;
    highest = seq_max(highest, end);
  }
  tcp->high_sacked = highest;
}

void tcp_update_window(struct harp_tcp *tcp, const struct harp_segment *segment) {
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
    tcp->snd_wnd = window;
    tcp->max_snd_wnd = HARP_MAX(tcp->max_snd_wnd, window);
    tcp->snd_edge = seq_max(tcp->snd_edge, segment->ack + window);
    tcp->snd_wl1 = segment->seq;
    tcp->snd_wl2 = segment->ack;
  }
}

static void advance_una(struct harp_tcp *tcp, uint32_t ack) {
  tcp->snd_una = ack;
  tcp->high_sacked = seq_max(tcp->high_sacked, ack);
  tcp->backoff = 0;
  tcp->last_progress = tcp->stack->now;
  if (tcp->timers[TIMER_USER] != TIMER_OFF) {
    bool open = ack != tcp->snd_nxt || tcp->snd_nxt != tcp->snd_end;
    tcp_timer_set(tcp, TIMER_USER, open ? tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS
                                        : TIMER_OFF);
  }
  tcp_arm_rto(tcp);
}

void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment) {
  uint32_t una = tcp->snd_una;
  uint64_t rtt = 0;
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
    result.delivered = ack_records(tcp, segment->ack, &rtt, &result.original);
    advance_una(tcp, segment->ack);
  }
  if (tcp->sack && segment->sack_count) {
    sack_input(tcp, segment, &result, &rtt);
  }
  if (rtt) {
    tcp_rtt_sample(tcp, rtt);
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
