/* SPDX-License-Identifier: Apache-2.0 */
/* Segments without payload: SYN, ACK, RST, keepalive probe. */
#ifndef HARP_STACK_TCP_CONTROL_H
#define HARP_STACK_TCP_CONTROL_H

#include <stdbool.h>

struct harp_segment;
struct harp_stack;
struct harp_tcp;

void tcp_send_ack(struct harp_tcp *tcp);
/* The same, only where tcp_ack_waits_for_nothing. */
void tcp_send_ack_within_burst(struct harp_tcp *tcp);
/* SYN or SYN-ACK, and its timer. */
void tcp_send_syn(struct harp_tcp *tcp);
/* Without the timer. */
void tcp_send_syn_once(struct harp_tcp *tcp);
/* Settles what the SYN offers: the MSS, and a scale so small that rcvbuf can be told in its
 * units. */
void tcp_commit_offer(struct harp_tcp *tcp);
void tcp_send_reset(struct harp_tcp *tcp);
/* One segment outside of the window rules: seq one below snd_una, no payload. false: the port
 * is full, nobody was asked. */
bool tcp_send_probe(struct harp_tcp *tcp);
/* Whether an unauthenticated peer may be sent a reset now. It is a service to whoever is mistaken;
 * a flood must not be answered by one of resets. */
bool tcp_may_reset(struct harp_stack *stack);
/* The answer to a segment for which there is no connection (RFC 9293, 3.10.7.1). */
void tcp_reply_reset(struct harp_stack *stack, const struct harp_segment *segment);

#endif
