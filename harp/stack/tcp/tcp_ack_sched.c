/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of acknowledgements (RFC 5681, 4.2; RFC 1122, 4.2.3.2). This file sends nothing. It
 * sets the state that the next flush reads; every segment that carries an acknowledgement clears
 * it.
 */
#include "harp/stack/tcp/tcp_ack_sched.h"

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"

enum {
  QUICK_ACKS = 16, /* Linux's number of quick ACKs after a loss */
  /* Full-sized payload on any path (RFC 9293, 3.7.1), minus the timestamp option. */
  LEAST_PUSHED = TCP_DEFAULT_MSS - TCP_TIMESTAMP_OPTION,
};

void tcp_ack_at_once(struct harp_tcp *tcp)
{
  if (tcp->ack.state == ACK_IDLE) {
    tcp->ack.state = ACK_DUE;
  }
  tcp_mark_dirty(tcp);
}

/* Estimates the peer's segment size, as Linux's tcp_measure_rcv_mss. The estimate follows larger
 * segments at once. It follows smaller ones if two in a row have the same size: the path MTU has
 * shrunk. A small segment with PSH is ignored, because it may be one short write. */
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

/* Whether this host has sent data, on any connection, since the last burst of this one arrived. */
static bool sends_too(struct harp_tcp *tcp)
{
  uint32_t before = tcp->ack.payload_out;
  tcp->ack.payload_out = (uint32_t)tcp->stack->counters[HARP_COUNTER_tcp_payload_out];
  return tcp->ack.payload_out != before;
}

void harp_flow_share_ack(struct harp_tcp *tcp, bool more)
{
  tcp->ack.may_wait = true;
  tcp->ack.more = more;
}

/* Whether the acknowledgement of the payload just delivered waits, as its sender allows
 * (tcp_shared_ack.c). Starts the timer (RFC 1122, 4.2.3.2, but shorter). */
static bool shared_ack_waits(struct harp_tcp *tcp)
{
  bool waits = tcp->ack.may_wait && tcp->ack.state == ACK_IDLE;
  if (waits && tcp->ack.quick) {
    tcp->ack.quick--;
    return false;
  }
  if (waits && tcp->timers[TIMER_DELAYED_ACK] == TIMER_OFF) {
    tcp_timer_set(tcp, TIMER_DELAYED_ACK, tcp->stack->now + SHARED_ACK_WAIT);
  }
  return waits;
}

/* HARP hosts acknowledge every burst without a timer, unless the ACK is shared (tcp_shared_ack.c).
 * The ACK of a single short message is deferred by one flush, because the application's answer can
 * carry it. A host that also sends defers the ACK of merged frames, too: its next data goes out
 * first, and two bursts may share an ACK. Bursts of single segments are acknowledged at once,
 * because their senders wait for room in small windows. */
static void schedule_for_harp_peer(struct harp_tcp *tcp, uint32_t length, bool merged, bool at_once)
{
  tcp->ack.yields = sends_too(tcp) && merged;
  bool held = tcp->ack.state == ACK_IDLE && !at_once && (tcp->ack.yields || length < tcp->snd.mss);
  tcp->ack.state = held ? ACK_HELD : ACK_DUE;
}

void tcp_ack_on_payload(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                        bool at_once)
{
  const struct harp_stack_config *config = &tcp->stack->config;
  if (length) {
    measure_segments(tcp, segment_size ? segment_size : length, pushed);
  }
  tcp_mark_dirty(tcp);
  if (tcp->harp_peer) {
    if (at_once || !shared_ack_waits(tcp)) {
      schedule_for_harp_peer(tcp, length, segment_size > 0, at_once);
    }
    tcp->ack.may_wait = false;
    return;
  }
  /* A sender that has just lost data has a small cwnd and needs quick ACKs. */
  if (at_once) {
    tcp->ack.quick = QUICK_ACKS;
  }
  /* More than one full-sized segment is unacknowledged. */
  bool second = tcp->rcv.nxt - tcp->ack.last_sent > tcp->ack.rcv_mss;
  if (tcp->ack.quick || config->delayed_ack_us == 0 || second) {
    tcp->ack.quick -= tcp->ack.quick > 0;
    tcp->ack.state = ACK_DUE;
  } else if (tcp->timers[TIMER_DELAYED_ACK] == TIMER_OFF) {
    tcp_timer_set(tcp, TIMER_DELAYED_ACK, tcp->stack->now + config->delayed_ack_us * NS_PER_US);
  }
}

/* A sender that pauses within a message waits for the shared ACK after all. It had a large window
 * when it allowed the wait, and has a small one since a timeout. */
void tcp_ack_timer(struct harp_tcp *tcp)
{
  if (tcp->ack.more && tcp->stack->now - tcp->last_receive >= SENDER_PAUSE) {
    tcp->ack.quick = QUICK_ACKS;
  }
  tcp_ack_at_once(tcp);
}

void tcp_ack_sent(struct harp_tcp *tcp)
{
  tcp->ack.last_sent = tcp->rcv.nxt;
  tcp->ack.state = ACK_IDLE;
  tcp->ack.may_wait = false;
  tcp_timer_stop(tcp, TIMER_DELAYED_ACK);
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

void tcp_ack_clear_quick(struct harp_tcp *tcp) { tcp->ack.quick = 0; }
