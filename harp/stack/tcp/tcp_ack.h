/* SPDX-License-Identifier: Apache-2.0 */
/* Processing of an acknowledgement: RTT sample, send queue, send window. */
#ifndef HARP_STACK_TCP_ACK_H
#define HARP_STACK_TCP_ACK_H

#include <stdbool.h>
#include <stdint.h>

struct harp_segment;
struct harp_tcp;

/* What an acknowledgement says, in host order. */
struct tcp_ack_numbers {
  uint32_t seq, ack;
  uint32_t window; /* as on the wire, unscaled */
  uint32_t echo;   /* TSecr, if has_echo */
  bool has_echo;
  bool bare; /* neither payload nor FIN */
};

/* Processes an acknowledgement whose number is at most SND.NXT. sacks: the segment, if it carries
 * SACK blocks, else NULL. */
void tcp_ack(struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
             const struct harp_segment *sacks);

#endif
