/* SPDX-License-Identifier: Apache-2.0 */
/* SEGMENT ARRIVES (RFC 9293, 3.10.7), with its steps in the RFC's order. */

#include "harp/stack/tcp/tcp_input.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/limit.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_cookie.h"
#include "harp/stack/tcp/tcp_listen.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_rtt.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"

/* RFC 5961, 7: limit of challenge ACKs. It is per connection, because a global limit is a side
 * channel (CVE-2016-5696). */
enum { CHALLENGES_PER_SECOND = 10 };

static bool may_answer(struct harp_tcp *tcp, struct harp_limit *limit)
{
  bool may = limit_allows(limit, tcp->stack->now, CHALLENGES_PER_SECOND);
  COUNT_N(tcp->stack, tcp_challenge_limited, !may);
  return may;
}

static void challenge(struct harp_tcp *tcp, struct harp_limit *limit)
{
  if (!may_answer(tcp, limit)) {
    return;
  }
  COUNT(tcp->stack, tcp_challenge_acks);
  tcp_ack_at_once(tcp);
}

/* The length in sequence space. */
static uint32_t segment_span(const struct harp_segment *segment)
{
  return segment->length + !!(segment->flags & FLAG_SYN) + !!(segment->flags & FLAG_FIN);
}

/* --- SYN-SENT (3.10.7.3) --- */

static void syn_sent_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  bool has_ack = segment->flags & FLAG_ACK;
  if (has_ack && segment->ack != tcp->snd.nxt) {
    if (!(segment->flags & FLAG_RST)) {
      tcp_reply_reset(tcp->stack, segment);
    }
    return;
  }
  if (segment->flags & FLAG_RST) {
    if (has_ack) {
      COUNT(tcp->stack, tcp_resets_in);
      tcp_finish(tcp, -ECONNREFUSED);
    }
    return;
  }
  if (!(segment->flags & FLAG_SYN)) {
    return;
  }
  tcp_take_syn_options(tcp, segment);
  tcp->rcv.irs = segment->seq;
  tcp->rcv.nxt = tcp->rcv.right = segment->seq + 1;
  tcp->ack.last_sent = tcp->rcv.nxt;
  tcp->snd.wnd = tcp->snd.max_wnd = segment->window; /* never scaled in a SYN */
  tcp->snd.wl1 = segment->seq;
  tcp->snd.wl2 = segment->ack;
  if (!has_ack) { /* simultaneous open */
    tcp_set_state(tcp, TCP_SYN_RECV);
    /* The SYN-ACK is no retransmission. */
    tcp->syn_transmits -= tcp->syn_transmits == 1;
    tcp_send_syn(tcp);
    return;
  }
  tcp->snd.una = segment->ack;
  tcp_rtt_sample_handshake(tcp);
  tcp_become_established(tcp);
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  tcp_ack_at_once(tcp);
}

/* --- Synchronized states (3.10.7.4) --- */

/* RFC 7323, 5.5: after 24 idle days TS.Recent is invalid. */
static bool recent_is_valid(const struct harp_tcp *tcp)
{
  return tcp->stack->now - tcp->ts.recent_time < 24ull * 86400 * NS_PER_S;
}

/* PAWS (RFC 7323, 5.3 R1): an old timestamp means an old segment. RSTs are exempt. */
static bool paws_rejects(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (!tcp->timestamps || (segment->flags & FLAG_RST)) {
    return false;
  }
  if (!segment->has_timestamp) {
    return true; /* RFC 7323, 3.2: drop it once timestamps are negotiated */
  }
  return seq_lt(segment->timestamp, tcp->ts.recent) && recent_is_valid(tcp);
}

/* Step 1: whether any part of the segment is in the receive window. */
static bool acceptable(const struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t window = tcp->rcv.right - tcp->rcv.nxt;
  uint32_t span = segment_span(segment);
  uint32_t offset = segment->seq - tcp->rcv.nxt;
  if (span == 0) {
    /* The right edge counts too: it is the peer's SND.NXT when a lost segment has filled the
     * window. */
    return offset <= window;
  }
  if (window == 0) {
    /* A zero window accepts no data. A window probe at the edge passes for its acknowledgement; the
     * stack trims its payload. */
    return offset == 0;
  }
  return offset < window || offset + span - 1 < window;
}

static void reset_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  /* RFC 5961, 3.2: only a RST with SEG.SEQ = RCV.NXT resets. */
  if (segment->seq != tcp->rcv.nxt) {
    if (segment->seq - tcp->rcv.nxt < tcp->rcv.right - tcp->rcv.nxt) {
      challenge(tcp, &tcp->challenge_limit);
    }
    return;
  }
  COUNT(tcp->stack, tcp_resets_in);
  stack_event(tcp, HARP_EVENT_RESET, 0, tcp->rcv.nxt - tcp->rcv.irs - 1);
  switch (tcp->state) {
  case TCP_SYN_RECV: tcp_finish(tcp, -ECONNREFUSED); break;
  case TCP_TIME_WAIT: /* RFC 1337: TIME-WAIT ignores RSTs */ break;
  case TCP_CLOSING:
  case TCP_LAST_ACK:
    /* Both sides have closed, but the peer may not have received all our data. */
    tcp_finish(tcp, seq_lt(tcp->snd.una, tcp->snd.end) ? -ECONNRESET : 0);
    break;
  case TCP_CLOSE_WAIT:
    /* The peer had closed, and all our data is acknowledged. The RST only shows that the peer's
     * socket is gone. Unread data stays for the owner. */
    if (tcp->rcv.queued && tcp->ops->deliver && tcp->snd.una == tcp->snd.end) {
      break;
    }
    tcp_finish(tcp, -EPIPE);
    break;
  default: tcp_finish(tcp, -ECONNRESET); break;
  }
}

/* Whether an acknowledgement of another number acknowledges a SYN cookie. The peer got one before
 * its retransmitted SYN created this connection. */
static bool of_a_cookie(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  enum tcp_cookie cookie = tcp->listener ? tcp_cookie_take(tcp->listener, segment, &tcp)
                                         : COOKIE_NONE;
  if (cookie == COOKIE_NONE) {
    tcp_reply_reset(tcp->stack, segment);
  }
  return cookie == COOKIE_TAKEN;
}

/* Step 5 for SYN-RECEIVED. false: processing of the segment ends here. */
static bool syn_received_ack(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (segment->ack != tcp->snd.nxt && !of_a_cookie(tcp, segment)) {
    return false;
  }
  bool syn = segment->flags & FLAG_SYN;
  if (tcp->snd.una != segment->ack) {
    tcp_rtt_sample_handshake(tcp);
  }
  tcp->snd.una = segment->ack;
  tcp->snd.wnd = segment->window << (syn ? 0 : tcp->snd.wscale);
  tcp->snd.max_wnd = tcp->snd.wnd;
  tcp->snd.wl1 = segment->seq;
  tcp->snd.wl2 = segment->ack;
  if (tcp->listener && tcp_listener_full(tcp->listener)) {
    return false;
  }
  tcp_become_established(tcp);
  return tcp->state != TCP_CLOSE;
}

/* Our FIN is acknowledged. */
static void fin_acknowledged(struct harp_tcp *tcp)
{
  switch (tcp->state) {
  case TCP_FIN_WAIT1:
    tcp_set_state(tcp, TCP_FIN_WAIT2);
    if (tcp->detached) {
      tcp_timer_set(tcp, TIMER_CLOSE, tcp->stack->now + FIN_WAIT_2_NS);
    }
    break;
  case TCP_CLOSING: tcp_time_wait(tcp); break;
  case TCP_LAST_ACK:
    if (!tcp->detached && tcp->rcv.queued) {
      /* The peer is done, but the owner has unread data. */
      tcp_timer_set(tcp, TIMER_CLOSE, tcp->stack->now + FIN_WAIT_2_NS);
    } else {
      tcp_finish(tcp, 0);
    }
    break;
  default: break;
  }
}

/* Whether the acknowledgement number is plausible. */
static bool good_ack(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (seq_gt(segment->ack, tcp->snd.nxt)) {
    COUNT(tcp->stack, tcp_bad_ack);
    challenge(tcp, &tcp->answer_limit);
    return false;
  }
  /* RFC 5961, 5.2: an acknowledgement below SND.UNA - MAX.SND.WND may be a blind attack. */
  if (seq_lt(segment->ack, tcp->snd.una - tcp->snd.max_wnd)) {
    COUNT(tcp->stack, tcp_bad_ack);
    challenge(tcp, &tcp->answer_limit);
    return false;
  }
  return true;
}

/* false: the connection is closed. */
static bool take_ack(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  bool fin_open = tcp->snd.fin_sent && seq_lt(tcp->snd.una, tcp->snd.nxt);
  const struct tcp_ack_numbers numbers = {
      .seq = segment->seq,
      .ack = segment->ack,
      .window = segment->window,
      .echo = segment->echo,
      .has_echo = segment->has_timestamp,
      .bare = segment->length == 0 && !(segment->flags & FLAG_FIN),
  };
  tcp_ack(tcp, &numbers, segment->sack_count ? segment : NULL);
  if (tcp->state == TCP_CLOSE) {
    return false;
  }
  if (fin_open && tcp->snd.una == tcp->snd.nxt) {
    fin_acknowledged(tcp);
  }
  return tcp->state != TCP_CLOSE;
}

static bool ack_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (tcp->state == TCP_SYN_RECV) {
    return syn_received_ack(tcp, segment);
  }
  if (!good_ack(tcp, segment)) {
    return false;
  }
  /* Only after this check: a forged segment must not keep the connection of a dead peer open. */
  tcp->last_receive = tcp->stack->now;
  tcp->probes = 0;
  return take_ack(tcp, segment);
}

static void fin_input(struct harp_tcp *tcp)
{
  tcp->rcv.nxt++;
  tcp->rcv.right = seq_max(tcp->rcv.right, tcp->rcv.nxt);
  tcp->rcv.fin_received = true;
  tcp->fin_waiting = false;
  tcp_rcvq_drop_out_of_order(tcp);
  tcp_ack_at_once(tcp);
  switch (tcp->state) {
  case TCP_ESTABLISHED: tcp_set_state(tcp, TCP_CLOSE_WAIT); break;
  case TCP_FIN_WAIT1:
    /* Our FIN is not acknowledged, or the state would be FIN-WAIT-2 now. */
    tcp_set_state(tcp, TCP_CLOSING);
    break;
  case TCP_FIN_WAIT2: tcp_time_wait(tcp); return;
  default: return;
  }
  if (tcp->ops->readable) {
    tcp->ops->readable(tcp->user, tcp);
  }
}

/* Step 1: trims the segment to the right edge of the receive window. Returns the bytes of payload
 * that are left. *fin: its FIN bit, cleared if it lies beyond the edge. */
static uint32_t trim_to_window(const struct harp_tcp *tcp, const struct harp_segment *segment,
                               bool *fin)
{
  uint32_t length = segment->length, end = segment->seq + length;
  *fin = segment->flags & FLAG_FIN;
  if (seq_gt(end, tcp->rcv.right)) {
    uint32_t cut = HARP_MIN(length, end - tcp->rcv.right);
    length -= cut;
    *fin = false;
  }
  return length;
}

/* Whether to acknowledge the segment at once: out-of-order data, duplicates and data that fills a
 * hole (RFC 5681, 4.2), and data beyond the window. Ask before the payload is queued, because it
 * changes the answer. length: bytes of payload within the window. */
static bool wants_immediate_ack(const struct harp_tcp *tcp, const struct harp_segment *segment,
                                uint32_t length)
{
  bool out_of_order = seq_gt(segment->seq, tcp->rcv.nxt);
  bool had_holes = tcp->rcv.ooo != NULL;
  bool duplicate = segment->length && seq_le(segment->seq + segment->length, tcp->rcv.nxt);
  return out_of_order || had_holes || duplicate || length < segment->length;
}

/* Step 8 for a FIN that may be ahead of missing data: it waits until RCV.NXT reaches it. Returns
 * whether it already waited. */
static bool note_fin(struct harp_tcp *tcp, uint32_t seq)
{
  bool again = tcp->fin_waiting && tcp->rcv.fin_seq == seq;
  tcp->fin_waiting = tcp->rcv.fin_newest = true;
  tcp->rcv.fin_seq = seq;
  return again;
}

/* Step 7, the segment text: queues it and schedules its acknowledgement. Notes the FIN first,
 * because SACK blocks cover it. false: the connection is closed. */
static bool text_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  bool fin;
  uint32_t length = trim_to_window(tcp, segment, &fin);
  bool at_once = wants_immediate_ack(tcp, segment, length);
  bool fin_again = fin && note_fin(tcp, segment->seq + length);
  if (length) {
    tcp_rcvq_payload(tcp, segment->seq, segment->payload, length);
    if (tcp->state == TCP_CLOSE) {
      return false;
    }
  }
  if (fin_again) {
    tcp_rcvq_duplicate(tcp, tcp->rcv.fin_seq, tcp->rcv.fin_seq + 1);
  }
  if (segment->length || (segment->flags & FLAG_FIN)) {
    tcp_ack_on_payload(tcp, segment->length, segment->segment_size, segment->flags & FLAG_PSH,
                       at_once);
  }
  return true;
}

/* Steps 7 and 8: the segment text and the FIN bit. */
static void data_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t end = segment->seq + segment->length;
  if (tcp->detached && segment->length && seq_gt(end, tcp->rcv.nxt)) {
    /* The application has closed and will not read new data (RFC 9293, 3.10.4; RFC 2525, 2.17). */
    tcp_send_reset(tcp);
    tcp_finish(tcp, -ECONNRESET);
    return;
  }
  uint32_t before = tcp->rcv.nxt, queued = tcp->rcv.queued;
  if (!text_input(tcp, segment)) {
    return;
  }
  if (tcp->rcv.queued != queued && tcp->ops->readable && tcp->rcv.nxt != before) {
    tcp->ops->readable(tcp->user, tcp);
    if (tcp->state == TCP_CLOSE) {
      return;
    }
  }
  if (tcp->fin_waiting && tcp->rcv.fin_seq == tcp->rcv.nxt) {
    fin_input(tcp);
  } else {
    tcp_send_ack_within_burst(tcp);
  }
}

/* Whether this is a retransmitted SYN of the same handshake: our SYN-ACK was lost. */
static bool repeated_syn(const struct harp_tcp *tcp, const struct harp_segment *segment)
{
  return tcp->state == TCP_SYN_RECV && segment->seq == tcp->rcv.irs &&
         !(segment->flags & (FLAG_ACK | FLAG_RST));
}

/* Whether this completes a simultaneous open (RFC 9293, 3.5): the peer's SYN again, now with an
 * acknowledgement of our SYN. */
static bool completes_open(const struct harp_tcp *tcp, const struct harp_segment *segment)
{
  return tcp->state == TCP_SYN_RECV && tcp->active && segment->seq == tcp->rcv.irs &&
         segment->ack == tcp->snd.nxt && segment->length == 0 &&
         (segment->flags & (FLAG_SYN | FLAG_ACK | FLAG_FIN | FLAG_RST)) == (FLAG_SYN | FLAG_ACK);
}

/* RFC 6191: a SYN of a new incarnation may replace a connection in TIME-WAIT. */
static bool reopens(const struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (tcp->state != TCP_TIME_WAIT || !(segment->flags & FLAG_SYN) ||
      (segment->flags & (FLAG_ACK | FLAG_RST))) {
    return false;
  }
  bool later = seq_gt(segment->seq, tcp->rcv.nxt);
  if (tcp->timestamps && segment->has_timestamp) {
    int32_t newer = seq_diff(segment->timestamp, tcp->ts.recent);
    return newer > 0 || (newer == 0 && later);
  }
  return later;
}

/* Whether a segment lies no further from RCV.NXT than the largest window. The peer sends nothing
 * beyond it, and repeats nothing that lies further back. */
static bool is_near(const struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t window = HARP_MIN(HARP_MAX(tcp->rcv.buf, 65536u), 1u << 30);
  return segment->seq - tcp->rcv.nxt + window <= 2 * window;
}

/* Sends an ACK with our RCV.NXT. Segments with payload or a FIN get it, because they may be
 * retransmissions after a lost ACK. Keepalive probes (SEG.SEQ = RCV.NXT - 1) get it too. Other
 * segments are old or forged, so a rate limit applies. */
static void answer_unacceptable(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  bool repeats = segment_span(segment) && is_near(tcp, segment);
  bool asks = repeats || segment->seq == tcp->rcv.nxt - 1;
  if (!asks && !may_answer(tcp, &tcp->answer_limit)) {
    return;
  }
  tcp_ack_at_once(tcp);
  tcp_send_ack_within_burst(tcp);
}

/* RFC 2883, 4: reports a segment without new data by DSACK. */
static void report_duplicate(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  uint32_t span = segment_span(segment);
  if (span && seq_le(segment->seq + span, tcp->rcv.nxt)) {
    COUNT(tcp->stack, tcp_duplicates);
    tcp_rcvq_duplicate(tcp, segment->seq, segment->seq + span);
  }
}

/* Takes the acknowledgement of an unacceptable segment if it lies one number below our RCV.NXT (RFC
 * 9293, A.2). Two zero-window probes that cross may both be accepted. The peer then sends its
 * number before the probe until it has our acknowledgement. Each side would otherwise refuse and
 * answer the other's window updates for ever. The number is as hard to guess as RCV.NXT. A
 * keepalive probe has it too. It is no answer to our own probes, because those may all be lost.
 * false: no answer is needed. */
static bool ack_below_window(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (!tcp_synchronized(tcp) || !(segment->flags & FLAG_ACK) || segment->seq != tcp->rcv.nxt - 1) {
    return true;
  }
  uint32_t una = tcp->snd.una;
  uint64_t progress = tcp->last_progress;
  if (!good_ack(tcp, segment) || !take_ack(tcp, segment)) {
    return false;
  }
  if (tcp->snd.una == una) {
    tcp->last_progress = progress; /* the user timeout goes on */
  }
  return true;
}

static void unacceptable(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  COUNT(tcp->stack, tcp_out_of_window);
  if (segment->flags & FLAG_RST) {
    return;
  }
  report_duplicate(tcp, segment);
  if (tcp->state == TCP_TIME_WAIT && (segment->flags & FLAG_FIN)) {
    /* The peer has not received our last ACK: restart the TIME-WAIT timer. */
    tcp_time_wait_start_timer(tcp);
  }
  /* First, so that the answer carries the number that the acknowledgement permits. */
  if (ack_below_window(tcp, segment)) {
    answer_unacceptable(tcp, segment);
  }
}

static void remember_timestamp(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  /* RFC 7323, 4.3 (2): from a segment with SEG.SEQ <= Last.ACK.sent. */
  if (segment->has_timestamp && tcp->timestamps && seq_le(segment->seq, tcp->ack.last_sent) &&
      (seq_ge(segment->timestamp, tcp->ts.recent) || !recent_is_valid(tcp))) {
    tcp->ts.recent = segment->timestamp;
    tcp->ts.recent_time = tcp->stack->now;
  }
}

static void connection_input(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  if (repeated_syn(tcp, segment)) {
    tcp_send_syn(tcp);
    return;
  }
  if (completes_open(tcp, segment)) {
    /* Send an ACK: some stacks accept only an ACK as the answer to this SYN-ACK. */
    if (syn_received_ack(tcp, segment)) {
      remember_timestamp(tcp, segment);
      tcp_ack_at_once(tcp);
    }
    return;
  }
  if ((segment->flags & (FLAG_SYN | FLAG_RST)) == FLAG_SYN) {
    /* RFC 5961, 4.2: a challenge ACK, whatever the sequence number. A peer that has restarted
     * answers it with a RST. This check precedes PAWS, because its SYN may carry no timestamps. */
    COUNT(tcp->stack, tcp_syn_in_window);
    challenge(tcp, &tcp->challenge_limit);
    return;
  }
  if (paws_rejects(tcp, segment)) {
    COUNT(tcp->stack, tcp_paws_drops);
    if (segment->has_timestamp) {
      /* The original is older than a retransmission that overtook it. */
      report_duplicate(tcp, segment);
    }
    answer_unacceptable(tcp, segment);
    return;
  }
  if (!acceptable(tcp, segment)) {
    unacceptable(tcp, segment);
    return;
  }
  if (segment->flags & FLAG_RST) {
    reset_input(tcp, segment);
    return;
  }
  if (!(segment->flags & FLAG_ACK) || !ack_input(tcp, segment)) {
    return;
  }
  remember_timestamp(tcp, segment);
  if (tcp_can_receive(tcp)) {
    data_input(tcp, segment);
  } else if (segment->length || (segment->flags & FLAG_FIN)) {
    tcp_ack_at_once(tcp);
  }
}

void tcp_input(struct harp_stack *stack, struct harp_segment *segment)
{
  COUNT(stack, tcp_segments_in);
  struct harp_tcp *tcp = tcp_lookup(stack, segment->source, segment->source_port,
                                    segment->destination_port);
  struct harp_listener *listener = NULL;
  if (!tcp || reopens(tcp, segment)) {
    listener = tcp_listener(stack, segment->destination_port);
  }
  if (listener) {
    tcp = tcp_listen_input(listener, segment, tcp);
  }
  stack->current = tcp;
  if (tcp && tcp->state == TCP_SYN_SENT) {
    syn_sent_input(tcp, segment);
  } else if (tcp) {
    connection_input(tcp, segment);
  } else if (!listener) {
    COUNT(stack, tcp_no_connection);
    if (!(segment->flags & FLAG_RST)) {
      tcp_reply_reset(stack, segment);
    }
  }
}
