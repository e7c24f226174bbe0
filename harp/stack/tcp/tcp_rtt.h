/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */
#ifndef HARP_STACK_TCP_RTT_H
#define HARP_STACK_TCP_RTT_H

#include <stdint.h>

struct harp_tcp;

void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt_ns);

/* The least RTTVAR term of the timeout, ns; applies at once. */
void tcp_set_rto_min(struct harp_tcp *tcp, uint64_t rto_min);

#endif
