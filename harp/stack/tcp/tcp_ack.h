/* SPDX-License-Identifier: Apache-2.0 */
/* An acknowledgement: round trips, reclaim, window. */
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

/* Takes an acknowledgement that is within what was sent. sacks: the segment, if it carries SACK
 * blocks, else NULL. */
void tcp_ack(struct harp_tcp *tcp, const struct tcp_ack_numbers *in,
             const struct harp_segment *sacks);

#endif
