/* SPDX-License-Identifier: Apache-2.0 */
/* Processing of an acknowledgement: delivered data, RTT sample and send window. */

#include "harp/stack/tcp/tcp_ack.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_recovery.h"
#include "harp/stack/tcp/tcp_rtt.h"
#include "harp/stack/tcp/tcp_sack.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_shared_ack.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"
#include "harp/stack/tcp/tcp_tlp.h"

/* Removes the records below ack. */
static void ack_records(struct harp_tcp *tcp, uint32_t ack, struct harp_ack_result *result)
{
  while (tcp->flight.first && seq_lt(tcp->flight.first->seq, ack)) {
    struct harp_record *record = tcp->flight.first;
    uint32_t end = seq_min(record->end, ack);
    if (record->state == RECORD_SACKED) {
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
  if (result->retransmitted) {
    result->rtt = 0; /* data beyond the hole waited until the hole was filled */
    if (result->timed) {
      tcp_rtt_sample_echo(tcp, result->echo);
    }
  }
}

/* The peer's window has closed or opened. The RTO restarts when it opens, because the interval of
 * the window probes may have grown to minutes. The data of a window probe is retransmitted, because
 * the peer may have dropped it. A closed window stops the tail loss probe. */
static void window_turned(struct harp_tcp *tcp)
{
  if (tcp->snd.wnd == 0) {
    stack_event(tcp, HARP_EVENT_WINDOW_CLOSED, 0, tcp->snd.wl2 - tcp->snd.iss - 1);
  } else {
    tcp->backoff = tcp->tries = 0;
    tcp_cwnd_restart(tcp); /* window probes are no ACK clock */
    if (tcp->snd.window_limited && tcp->flight.first &&
        tcp->flight.first->state == RECORD_IN_FLIGHT) {
      tcp_mark_lost(tcp, tcp->flight.first);
    }
    tcp_arm_rto(tcp);
  }
  tcp_arm_tail_probe(tcp);
}

/* Updates SND.WND, SND.WL1 and SND.WL2 (RFC 9293, 3.10.7.4). */
static void update_window(struct harp_tcp *tcp, const struct tcp_ack_numbers *in)
{
  if (seq_lt(in->ack, tcp->snd.una)) {
    return; /* an old acknowledgement, whatever its sequence number */
  }
  /* Take the window from the newest segment only. A segment that advances SND.UNA counts as new
   * even if a later one overtook it: the window counts from SND.UNA, so the old value would exceed
   * the peer's offer. */
  if (seq_gt(in->ack, tcp->snd.una) || seq_lt(tcp->snd.wl1, in->seq) ||
      (tcp->snd.wl1 == in->seq && seq_le(tcp->snd.wl2, in->ack))) {
    uint32_t window = in->window << tcp->snd.wscale;
    bool turned = !tcp->snd.wnd != !window;
    tcp->snd.wnd = window;
    tcp->snd.max_wnd = HARP_MAX(tcp->snd.max_wnd, window);
    tcp->snd.edge = seq_max(tcp->snd.edge, in->ack + window);
    tcp->snd.wl1 = in->seq;
    tcp->snd.wl2 = in->ack;
    if (turned) {
      window_turned(tcp);
    }
  }
}

static void advance_una(struct harp_tcp *tcp, uint32_t ack)
{
  tcp->snd.una = ack;
  tcp->flight.high_sacked = seq_max(tcp->flight.high_sacked, ack);
  tcp->tries = 0;
  tcp->backoff = HARP_MIN(tcp->backoff, (uint8_t)TCP_BACKOFF_KEPT);
  tcp->last_progress = tcp->stack->now;
  if (tcp->timers[TIMER_USER] != TIMER_OFF) {
    bool open = ack != tcp->snd.end + tcp->snd.fin_sent;
    tcp_timer_set(tcp, TIMER_USER,
                  open ? tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS : TIMER_OFF);
  }
  tcp_arm_rto(tcp);
}

/* The Eifel detection (RFC 3522, 3.2): the segment that fills the hole was sent before the first
 * retransmission, so that retransmission was spurious. It needs a retransmission in a later
 * timestamp tick. */
static bool is_original_by_echo(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  return tcp->undo.possible && tcp->undo.retransmits && tcp->flight.first->transmits > 1 &&
         result->timed && seq_lt(result->echo, tcp->undo.stamp);
}

/* The same acknowledgement number and window again, without payload. window: SND.WND before this
 * segment, bytes. */
static bool is_repeated(const struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
                        uint32_t window)
{
  return in->ack == tcp->snd.una && in->bare && tcp->snd.wnd == window;
}

/* RFC 5681, 2: the same while data is in flight. */
static bool is_duplicate_ack(const struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
                             uint32_t window)
{
  return tcp->flight.first && window && is_repeated(tcp, in, window);
}

/* A duplicate ACK of a peer without SACK shows that one segment has left the network. */
static void duplicate_ack(struct harp_tcp *tcp, struct harp_ack_result *result)
{
  result->duplicate = true;
  result->delivered = tcp->snd.mss;
  tcp_recovery_on_ack(tcp, result);
  tcp_mark_dirty(tcp);
}

/* The segment acknowledges no data. Only the window may have changed. */
static void window_update(struct harp_tcp *tcp)
{
  if (tcp->snd.nxt != tcp->snd.end || tcp->flight.lost_first || tcp->ops->pull) {
    tcp_mark_dirty(tcp);
  }
}

/* The acknowledgement advances SND.UNA: removes the acknowledged records. Checks first whether the
 * original of a retransmitted segment has arrived (Eifel). */
static void take_acked(struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
                       struct harp_ack_result *result)
{
  result->timed = tcp->timestamps && in->has_echo;
  result->echo = in->echo;
  result->original_by_echo = is_original_by_echo(tcp, result);
  if (result->original_by_echo) {
    tcp_rack_original_acked_after_retransmit(tcp);
  }
  ack_records(tcp, in->ack, result);
  advance_una(tcp, in->ack);
}

/* Releases the acknowledged bytes to the owner. una: SND.UNA before the acknowledgement. */
static void release_acked(struct harp_tcp *tcp, uint32_t una, uint32_t ack)
{
  uint32_t bytes = ack - una;
  if (tcp->snd.fin_sent && ack == tcp->snd.nxt) {
    bytes--; /* the FIN is not payload */
  }
  tcp_sndq_release(tcp, ack);
  tcp->bytes_out += bytes;
  if (bytes && tcp->ops->acked) {
    tcp->ops->acked(tcp->user, tcp, bytes);
  }
}

void tcp_ack(struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
             const struct harp_segment *sacks)
{
  uint32_t una = tcp->snd.una;
  uint32_t window = tcp->snd.wnd;
  struct harp_ack_result result = {.una_before = una,
                                   .was_limited = tcp->cwnd_limited || tcp->cwnd_used};
  tcp->cwnd_limited &= seq_lt(in->ack, tcp->cwnd_end);
  tcp->cwnd_used &= seq_lt(in->ack, tcp->shared_ack.end);
  update_window(tcp, in);
  if (!tcp->sack && is_duplicate_ack(tcp, in, window)) {
    duplicate_ack(tcp, &result);
    return;
  }
  bool advances = seq_gt(in->ack, una);
  if (advances || tcp->snd.wnd != window) {
    stack_event(tcp, HARP_EVENT_ACKED, tcp->snd.wnd >> 10,
                (advances ? in->ack : una) - tcp->snd.iss - 1);
  }
  if (!advances && tcp->snd.wnd == 0) {
    /* A live peer with a closed window: the user timeout must not expire. */
    tcp->last_progress = tcp->stack->now;
  }
  if (!advances && !sacks) {
    if (is_repeated(tcp, in, window)) {
      tcp_tlp_on_duplicate(tcp);
    }
    window_update(tcp);
    return;
  }
  if (advances) {
    take_acked(tcp, in, &result);
  }
  if (tcp->sack && sacks) {
    tcp_sack_input(tcp, sacks, &result);
  }
  if (result.late && !result.retransmitted) {
    tcp_rack_reordering_seen(tcp, result.late);
  }
  if (tcp_rtt_is_sample(tcp->stack, result.rtt) && !tcp_shared_ack_ends(tcp, in->ack)) {
    tcp_rtt_sample(tcp, result.rtt);
  } else {
    result.rtt = 0;
  }
  tcp_recovery_on_ack(tcp, &result);
  tcp_mark_dirty(tcp);
  if (advances) {
    release_acked(tcp, una, in->ack);
  }
}
