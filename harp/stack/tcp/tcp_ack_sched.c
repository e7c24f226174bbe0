/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When to acknowledge: RFC 5681, 4.2; RFC 1122, 4.2.3.2. Nothing is sent here. The state says what
 * the next flush owes the peer; every segment that carries an acknowledgement settles it.
 */
#include "harp/stack/tcp/tcp_ack_sched.h"

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_timer.h"

enum {
  QUICK_ACKS = 16, /* as many as Linux grants a sender that has lost something */
  /* Payload that every path can take (RFC 9293, 3.7.1), timestamps subtracted. */
  LEAST_PUSHED = TCP_DEFAULT_MSS - TCP_TIMESTAMP_OPTION,
};

void tcp_ack_at_once(struct harp_tcp *tcp)
{
  if (tcp->ack.state == ACK_IDLE) {
    tcp->ack.state = ACK_DUE;
  }
  tcp_mark_dirty(tcp);
}

bool tcp_ack_waits_for_nothing(const struct harp_tcp *tcp)
{
  bool with_data = tcp->snd.nxt != tcp->snd.end + tcp->snd.fin_sent; /* at the end of this burst */
  return tcp->ack.state != ACK_IDLE && !tcp->harp_peer && !with_data;
}

/* The estimate follows the largest segments, and smaller ones once two in a row are of a size: the
 * path has become narrower. A pushed one may be all that somebody has written, unless it is as
 * large as any path can take (as in Linux, tcp_measure_rcv_mss). */
static void measure_segments(struct harp_tcp *tcp, uint32_t size, bool pushed)
{
  uint32_t last = tcp->ack.last_smaller;
  tcp->ack.last_smaller = 0;
  if (size >= tcp->ack.rcv_mss || size == last) {
    tcp->ack.rcv_mss = HARP_MIN(size, (uint32_t)tcp->stack->config.mtu);
  } else if (size >= (pushed ? LEAST_PUSHED : TCP_MSS_FLOOR)) {
    tcp->ack.last_smaller = size;
  }
}

/* HARP hosts acknowledge every burst. A lone short message is answered first, and acknowledged by
 * the next poll: its answer is what the peer waits for. */
static void schedule_for_harp_peer(struct harp_tcp *tcp, uint32_t length, bool at_once)
{
  bool lone = tcp->ack.state == ACK_IDLE && !at_once && length < tcp->snd.mss;
  tcp->ack.state = lone ? ACK_HELD : ACK_DUE;
}

void tcp_ack_schedule(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                      bool at_once)
{
  const struct harp_stack_config *config = &tcp->stack->config;
  if (length) {
    measure_segments(tcp, segment_size ? segment_size : length, pushed);
  }
  tcp_mark_dirty(tcp);
  if (tcp->harp_peer) {
    schedule_for_harp_peer(tcp, length, at_once);
    return;
  }
  /* A sender that has just lost something has a small window, and nothing else to wait for. */
  if (at_once) {
    tcp->ack.quick = QUICK_ACKS;
  }
  bool second = tcp->rcv.nxt - tcp->ack.last_sent > tcp->ack.rcv_mss; /* more than a full one */
  if (tcp->ack.quick || config->delayed_ack_us == 0 || second) {
    tcp->ack.quick -= tcp->ack.quick > 0;
    tcp->ack.state = ACK_DUE;
  } else if (tcp->timers[TIMER_DELAYED_ACK] == TIMER_OFF) {
    tcp_timer_set(tcp, TIMER_DELAYED_ACK, tcp->stack->now + config->delayed_ack_us * NS_PER_US);
  }
}

void tcp_ack_sent(struct harp_tcp *tcp)
{
  tcp->ack.last_sent = tcp->rcv.nxt;
  tcp->ack.state = ACK_IDLE;
  tcp_timer_set(tcp, TIMER_DELAYED_ACK, TIMER_OFF);
}

bool tcp_ack_hold(struct harp_tcp *tcp)
{
  if (tcp->ack.state != ACK_HELD || tcp->ack.listed) {
    return false;
  }
  tcp->ack.state = ACK_DUE;
  tcp->ack.listed = true;
  tcp->ack.next = tcp->stack->held;
  tcp->stack->held = tcp;
  return true;
}

struct harp_tcp *tcp_ack_take_held(struct harp_stack *stack)
{
  struct harp_tcp *list = stack->held;
  stack->held = NULL;
  return list;
}

struct harp_tcp *tcp_ack_unlist(struct harp_tcp *tcp)
{
  tcp->ack.listed = false;
  return tcp->ack.next;
}

void tcp_ack_set_harp_peer(struct harp_tcp *tcp) { tcp->ack.quick = 0; }
