/* SPDX-License-Identifier: Apache-2.0 */
/* IPv4 output: headers and next hop. */
#ifndef HARP_STACK_IP_OUTPUT_H
#define HARP_STACK_IP_OUTPUT_H

#include <stdint.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"

struct harp_neighbour;
struct harp_stack;
struct harp_tx_frame;

/* Writes Ethernet and IPv4 headers; returns their length. payload_length:
 * bytes after the IPv4 header. */
uint32_t ip_write_headers(struct harp_stack *stack, uint8_t *out, uint32_t source,
                          uint32_t destination, uint8_t protocol, uint8_t tos,
                          uint32_t payload_length);
/* Sets the payload length of an IPv4 header that ip_write_headers has written with length 0. */
static inline void ip_set_payload_length(uint8_t *header, uint32_t payload_length)
{
  uint16_t sum;
  memcpy(&sum, header + IP_SUM, 2);
  /* Incremental update (RFC 1624, 3). */
  sum = (uint16_t)~harp_sum_of_two((uint16_t)~sum, __builtin_bswap16((uint16_t)payload_length));
  memcpy(header + IP_SUM, &sum, 2);
  store_be16(header + IP_TOTAL_LENGTH, (uint16_t)(IP_HEADER + payload_length));
}
/* Sends a frame whose headers ip_write_headers wrote. iov[0] must be writable. Without the
 * neighbour's hardware address the frame is queued or dropped; both return 0. Else returns the
 * result of link_transmit. */
int ip_transmit(struct harp_stack *stack, struct harp_neighbour *neighbour,
                struct harp_tx_frame *frame);
/* Returns the next hop to destination; 0: no route. Addresses in network order. */
uint32_t ip_next_hop(const struct harp_stack *stack, uint32_t destination);

#endif
