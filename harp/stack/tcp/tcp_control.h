/* SPDX-License-Identifier: Apache-2.0 */
/* Segments without payload: SYN, ACK, RST, keepalive probe. */
#ifndef HARP_STACK_TCP_CONTROL_H
#define HARP_STACK_TCP_CONTROL_H

#include <stdbool.h>

#include "harp/stack/tcp/tcp_ack_sched.h"

struct harp_segment;
struct harp_stack;
struct harp_tcp;

void tcp_send_ack(struct harp_tcp *tcp);
/* Sends an ACK, but only if tcp_ack_is_due_within_burst. */
static inline void tcp_send_ack_within_burst(struct harp_tcp *tcp)
{
  if (tcp_ack_is_due_within_burst(tcp)) {
    tcp_send_ack(tcp);
  }
}
/* Sends a SYN or SYN-ACK and starts its timer. */
void tcp_send_syn(struct harp_tcp *tcp);
/* Sends a SYN or SYN-ACK without a timer. */
void tcp_send_syn_once(struct harp_tcp *tcp);
/* Fixes the MSS and window scale that the SYN offers. A small receive buffer reduces the scale, so
 * that the window field can express it. */
void tcp_commit_offer(struct harp_tcp *tcp);
void tcp_send_reset(struct harp_tcp *tcp);
/* Sends a keepalive probe: SEG.SEQ = SND.UNA - 1, no payload (RFC 1122, 4.2.3.6). false: the port
 * is full and no probe was sent. */
bool tcp_send_probe(struct harp_tcp *tcp);
/* Whether the rate limit allows a RST to an unauthenticated peer now. The limit prevents a flood of
 * RSTs in answer to a flood of segments. */
bool tcp_may_reset(struct harp_stack *stack);
/* Answers a segment for which there is no connection (RFC 9293, 3.10.7.1). */
void tcp_reply_reset(struct harp_stack *stack, const struct harp_segment *segment);

#endif
