/* SPDX-License-Identifier: Apache-2.0 */
/* Transmission of a segment: headers, options, checksum, gather list. */
#ifndef HARP_STACK_TCP_TRANSMIT_H
#define HARP_STACK_TCP_TRANSMIT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_neighbour;
struct harp_reference;
struct harp_stack;
struct harp_tcp;

/* Header fields that all segments of a connection share. */
struct tcp_addresses {
  uint32_t source, destination; /* network order */
  uint16_t source_port, destination_port;
  uint8_t tos;
};

/* Sends a segment without payload. Returns 0, or the negative errno of ip_transmit. */
int tcp_transmit_bare(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, const uint8_t *options,
                      uint32_t options_length);
/*
 * Sends payload [seq, seq + length): as one large segment if the port has TSO, else segment by
 * segment. fin: the last segment carries our FIN. Returns the payload bytes sent; fewer than
 * length: the port is full.
 */
uint32_t tcp_transmit_payload(struct harp_tcp *tcp, const struct harp_reference *reference,
                              uint32_t seq, uint32_t length, bool fin, bool *fin_sent);
/* Sends a segment that belongs to no connection. Its window is 0. */
void tcp_transmit_unconnected(struct harp_stack *stack, struct harp_neighbour *neighbour,
                              const struct tcp_addresses *addresses, uint32_t seq, uint32_t ack,
                              uint8_t flags);

#endif
