/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */
#ifndef HARP_STACK_TCP_RTT_H
#define HARP_STACK_TCP_RTT_H

#include <stdint.h>

struct harp_tcp;

/* Takes a sample, ns: updates SRTT, RTTVAR and the RTO. */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt_ns);

/* Sets the floor of the RTO's RTTVAR term, ns; updates the RTO at once. */
void tcp_set_rto_min(struct harp_tcp *tcp, uint64_t rto_min);

#endif
