/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion window and the slow start threshold (RFC 5681): every change of the two. */
#include "harp/stack/tcp/tcp_cwnd.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"

#define CWND_MAX (1u << 30) /* bytes; more than any window of the peer */

void tcp_cwnd_init(struct harp_tcp *tcp) { tcp->ssthresh = UINT32_MAX; }

void tcp_cwnd_established(struct harp_tcp *tcp)
{
  /* RFC 5681, 3.1: after a lost SYN or SYN-ACK, cwnd is one segment. */
  uint32_t segments = tcp->syn_transmits > 1 ? 1 : tcp->stack->config.initial_window;
  tcp->cwnd = segments * tcp->snd.mss;
}

static void grow(struct harp_tcp *tcp, uint32_t bytes)
{
  tcp->cwnd = HARP_MIN(tcp->cwnd + bytes, CWND_MAX);
}

/* The first slow start, which HyStart++ ends. */
static void first_slow_start(struct harp_tcp *tcp, uint32_t acked, uint64_t rtt)
{
  if (hystart_on_ack(tcp, rtt)) {
    grow(tcp, hystart_growth(&tcp->hystart, acked));
  } else {
    COUNT(tcp->stack, tcp_slow_start_exits);
    tcp->ssthresh = tcp->cwnd; /* congestion avoidance continues from here */
  }
}

void tcp_cwnd_increase(struct harp_tcp *tcp, uint32_t acked, uint64_t rtt)
{
  if (tcp->ssthresh == UINT32_MAX) {
    first_slow_start(tcp, acked, rtt);
    return;
  }
  if (tcp->cwnd < tcp->ssthresh) {
    uint32_t part = HARP_MIN(acked, tcp->ssthresh - tcp->cwnd);
    grow(tcp, part);
    acked -= part;
  }
  if (acked && tcp->cwnd >= tcp->ssthresh) {
    grow(tcp, tcp->cc.ops->on_ack(tcp, acked));
  }
}

void tcp_cwnd_enter_recovery(struct harp_tcp *tcp)
{
  tcp->undo.cwnd = tcp->cwnd;
  tcp->undo.ssthresh = tcp->ssthresh;
  tcp->growth_due = 0;
  tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
}

void tcp_cwnd_on_rto(struct harp_tcp *tcp) { tcp->cwnd = tcp->snd.mss; }

void tcp_cwnd_leave_recovery(struct harp_tcp *tcp) { tcp->cwnd = tcp->ssthresh; }

void tcp_cwnd_on_repaired_loss(struct harp_tcp *tcp)
{
  tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
  tcp->cwnd = HARP_MIN(tcp->cwnd, tcp->ssthresh);
}

void tcp_cwnd_undo(struct harp_tcp *tcp)
{
  tcp->cwnd = HARP_MAX(tcp->cwnd, tcp->undo.cwnd);
  tcp->ssthresh = HARP_MAX(tcp->ssthresh, tcp->undo.ssthresh);
  tcp->cc.ops->on_undo(tcp);
}
