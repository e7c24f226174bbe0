/* SPDX-License-Identifier: Apache-2.0 */
/* What an acknowledgement tells: what has arrived, how fast, and how much room there is. */

/* Takes out what lies below ack. */
#include "harp/stack/tcp/tcp_ack.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/headers.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_recovery.h"
#include "harp/stack/tcp/tcp_rtt.h"
#include "harp/stack/tcp/tcp_sack.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"

static void ack_records(struct harp_tcp *tcp, uint32_t ack, struct harp_ack_result *result)
{
  while (tcp->flight.first && seq_lt(tcp->flight.first->seq, ack)) {
    struct harp_record *record = tcp->flight.first;
    uint32_t end = seq_min(record->end, ack);
    if (record->sacked) {
      tcp->flight.sacked_out -= end - record->seq;
    } else {
      tcp_rack_update(tcp, record, end, result);
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
  if (seq_lt(segment->ack, tcp->snd.una)) {
    return; /* old news, whatever its number: behind a lost segment the newest may come first */
  }
  /* RFC 9293, 3.10.7.4: from the newest segment only. That is also one that acknowledges more,
   * though another overtook it: the window counts from what is acknowledged, and the old one
   * would reach beyond what the peer has offered. */
  if (seq_gt(segment->ack, tcp->snd.una) || seq_lt(tcp->snd.wl1, segment->seq) ||
      (tcp->snd.wl1 == segment->seq && seq_le(tcp->snd.wl2, segment->ack))) {
    uint32_t window = segment->window << tcp->snd.wscale;
    if (tcp->snd.wnd == 0 && window && tcp->snd.window_limited) {
      /* Open again: what was only a probe goes out for good. */
      tcp->backoff = 0;
      if (tcp->flight.first && !tcp->flight.first->sacked && !tcp->flight.first->lost) {
        tcp_mark_lost(tcp, tcp->flight.first);
      }
    }
    if (tcp->snd.wnd && !window) {
      stack_event(tcp, HARP_EVENT_WINDOW_CLOSED, 0, segment->ack - tcp->snd.iss - 1);
    }
    bool turned = !tcp->snd.wnd != !window;
    tcp->snd.wnd = window;
    tcp->snd.max_wnd = HARP_MAX(tcp->snd.max_wnd, window);
    tcp->snd.edge = seq_max(tcp->snd.edge, segment->ack + window);
    tcp->snd.wl1 = segment->seq;
    tcp->snd.wl2 = segment->ack;
    if (turned) {
      tcp_arm_tail_probe(tcp); /* off when it closes, and on again when it opens */
    }
  }
}

static void advance_una(struct harp_tcp *tcp, uint32_t ack)
{
  tcp->snd.una = ack;
  tcp->flight.high_sacked = seq_max(tcp->flight.high_sacked, ack);
  tcp->backoff = 0;
  tcp->last_progress = tcp->stack->now;
  if (tcp->timers[TIMER_USER] != TIMER_OFF) {
    bool open = ack != tcp->snd.end + tcp->snd.fin_sent;
    tcp_timer_set(tcp, TIMER_USER,
                  open ? tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS : TIMER_OFF);
  }
  tcp_arm_rto(tcp);
}

/* The Eifel detection (RFC 3522, 3.2): what fills the hole was sent before the first
 * retransmission, so that one was needless. Only a copy in a later tick can be told apart. */
static bool is_first_copy(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  return tcp->undo.possible && tcp->undo.retransmits && tcp->flight.first->transmits > 1 &&
         result->timed && seq_lt(result->echo, tcp->undo.stamp);
}

void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t una = tcp->snd.una;
  uint32_t window = tcp->snd.wnd;
  struct harp_ack_result result = {.una_before = una, .was_limited = tcp->cwnd_limited};
  tcp_update_window(tcp, segment);
  bool advances = seq_gt(segment->ack, una);
  if (!tcp->sack && segment->ack == una && tcp->flight.first && segment->length == 0 && window &&
      tcp->snd.wnd == window && !(segment->flags & FLAG_FIN)) {
    /* RFC 5681, 2: a duplicate; some segment has left the network. */
    result.duplicate = true;
    result.delivered = tcp->snd.mss;
    tcp_recovery_on_ack(tcp, &result);
    tcp_mark_dirty(tcp);
    return;
  }
  if (!advances && tcp->snd.wnd == 0) {
    /* A living peer that has no room: no reason to give it up. */
    tcp->last_progress = tcp->stack->now;
  }
  if (!advances && segment->sack_count == 0) {
    if (tcp->snd.nxt != tcp->snd.end || tcp->flight.lost_first || tcp->ops->pull) {
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
    if (tcp->snd.fin_sent && segment->ack == tcp->snd.nxt) {
      bytes--; /* the FIN is nobody's byte */
    }
    tcp_sndq_release(tcp, segment->ack);
    tcp->bytes_out += bytes;
    if (bytes && tcp->ops->acked) {
      tcp->ops->acked(tcp->user, tcp, bytes);
    }
  }
}
