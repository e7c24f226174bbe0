/* SPDX-License-Identifier: Apache-2.0 */
/* One segment out: headers, options, checksum, gather list. */
#ifndef HARP_STACK_TCP_TRANSMIT_H
#define HARP_STACK_TCP_TRANSMIT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_neighbour;
struct harp_reference;
struct harp_stack;
struct harp_tcp;

/* What the headers of consecutive segments have in common. */
struct tcp_header_fields {
  uint32_t source, destination; /* network order */
  uint16_t source_port, destination_port;
  uint32_t ack;
  uint16_t window;
  uint8_t tos;
  const uint8_t *options;
  uint32_t options_length;
};

/* A segment of a connection without payload. 0, or the negative errno of ip_transmit. */
int tcp_transmit_bare(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, const uint8_t *options,
                      uint32_t options_length);
/*
 * Payload [seq, seq + length), as one large segment where the port can cut it,
 * else segment by segment. fin: the last one carries our FIN. Returns how many
 * payload bytes went out; short: the port is full.
 */
uint32_t tcp_transmit_payload(struct harp_tcp *tcp, const struct harp_reference *reference,
                              uint32_t seq, uint32_t length, bool fin, bool *fin_sent);
/* A segment that belongs to no connection. */
void tcp_transmit_unconnected(struct harp_stack *stack, struct harp_neighbour *neighbour,
                              const struct tcp_header_fields *fields, uint32_t seq, uint8_t flags);

#endif
