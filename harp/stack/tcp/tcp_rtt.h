/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */
#ifndef HARP_STACK_TCP_RTT_H
#define HARP_STACK_TCP_RTT_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/stack_state.h"

struct harp_tcp;

/* Whether a round trip that ends now is a sample. rtt: ns; 0: none. A round trip that began before
 * the end of a pause of this process is none: it includes the pause. */
static inline bool tcp_rtt_is_sample(const struct harp_stack *stack, uint64_t rtt)
{
  return rtt - 1 < stack->now - stack->resumed; /* 0 wraps */
}

/* Takes a sample, ns, at least 1: updates SRTT, RTTVAR and the RTO. */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt_ns);

/* Takes a sample from the timestamp that the acknowledgement of a retransmitted record echoes. The
 * echo tells which transmission has arrived, so Karn's rule does not apply. The clock is coarse, so
 * only a sample above SRTT counts. It counts as at most the RTO, because the peer may have been
 * stopped. */
void tcp_rtt_sample_echo(struct harp_tcp *tcp, uint32_t echo);

/* Takes the handshake's sample, if it has one: the SYN was sent once (Karn), and this process did
 * not pause since. The RTO grows if the SYN was sent again. */
void tcp_rtt_sample_handshake(struct harp_tcp *tcp);

/* Sets the floor of the RTO's RTTVAR term, ns; updates the RTO at once. */
void tcp_set_rto_min(struct harp_tcp *tcp, uint64_t rto_min);

#endif
