/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion window and the slow start threshold (RFC 5681). Only tcp_cwnd.h and tcp_cwnd.c
 * change cwnd and ssthresh. */
#ifndef HARP_STACK_TCP_CWND_H
#define HARP_STACK_TCP_CWND_H

#include <stdint.h>

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"

/* A connection is created: no loss has set ssthresh. */
void tcp_cwnd_init(struct harp_tcp *tcp);
/* The connection is established: sets the initial window. */
void tcp_cwnd_established(struct harp_tcp *tcp);
/* Adds acked bytes by slow start or congestion avoidance. rtt: of the acknowledgement, ns; 0: no
 * sample. */
void tcp_cwnd_increase(struct harp_tcp *tcp, uint32_t acked, uint64_t rtt);

/* Recovery begins: reduces ssthresh, and saves the state for an undo. */
void tcp_cwnd_enter_recovery(struct harp_tcp *tcp);
/* The retransmission timer has fired: sets the loss window. */
void tcp_cwnd_on_rto(struct harp_tcp *tcp);
/* Fast recovery ends. */
void tcp_cwnd_leave_recovery(struct harp_tcp *tcp);
/* A loss was repaired without recovery: reduces ssthresh and cwnd. */
void tcp_cwnd_on_repaired_loss(struct harp_tcp *tcp);
/* The reaction to the last loss was spurious. */
void tcp_cwnd_undo(struct harp_tcp *tcp);

/* cwnd limits the sender: acknowledgements of the data in flight make it grow (RFC 7661, 4.3). */
static inline void tcp_cwnd_limits(struct harp_tcp *tcp)
{
  tcp->cwnd_limited = true;
  tcp->cwnd_end = tcp->snd.nxt;
}

/* The sender has less data than cwnd allows. In the first slow start between HARP hosts, cwnd stops
 * growing at once, because many flows that begin together overfill queues (decision 0074). */
static inline void tcp_cwnd_does_not_limit(struct harp_tcp *tcp)
{
  if (tcp->harp_peer && tcp->ssthresh == UINT32_MAX) {
    tcp->cwnd_limited = false;
  }
}

/* An acknowledgement advances SND.UNA outside fast recovery. */
static inline void tcp_cwnd_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  uint32_t acked = result->delivered + tcp->growth_due;
  tcp->growth_due = 0;
  if (!result->was_limited && tcp->recovery == RECOVERY_NONE) {
    return; /* cwnd was not the limit, so it is not validated (RFC 7661) */
  }
  tcp_cwnd_increase(tcp, acked, result->rtt);
}

/* SACKs delivered bytes before an advance of SND.UNA: cwnd grows at that advance. */
static inline void tcp_cwnd_grow_later(struct harp_tcp *tcp, uint32_t delivered)
{
  tcp->growth_due += delivered;
}

/* In fast recovery, proportional rate reduction computes cwnd. */
static inline void tcp_cwnd_set_in_recovery(struct harp_tcp *tcp, uint32_t cwnd)
{
  tcp->cwnd = cwnd;
}

/* RFC 5681, 4.1: a sender that has sent no data for longer than the RTO has lost its ACK clock, and
 * reduces cwnd. ACKs and window probes do not count. Between HARP hosts cwnd is kept, because
 * training traffic alternates between bursts and pauses on a known path. */
static inline void tcp_cwnd_restart(struct harp_tcp *tcp)
{
  if (!tcp->harp_peer && tcp->stack->now - tcp->last_send > tcp->rtt.rto) {
    /* Slow start returns to most of the old window (RFC 2861), and CUBIC begins a new epoch. */
    tcp->ssthresh = HARP_MAX(tcp->ssthresh, tcp->cwnd / 4 * 3);
    tcp->cc.epoch = 0;
    tcp->cwnd = HARP_MIN(tcp->cwnd, tcp->stack->config.initial_window * tcp->snd.mss);
  }
}

/* The same before new data, if no data is in flight. */
static inline void tcp_cwnd_restart_after_idle(struct harp_tcp *tcp)
{
  if (tcp->snd.nxt == tcp->snd.una) {
    tcp_cwnd_restart(tcp);
  }
}

#endif
