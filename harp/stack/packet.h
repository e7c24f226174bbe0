/* SPDX-License-Identifier: Apache-2.0 */
/* Packet buffers. */
#ifndef HARP_STACK_PACKET_H
#define HARP_STACK_PACKET_H

#include <stdint.h>
/* A packet buffer: queued received payload, bytes of a socket's send buffer, or a frame queued for
 * a neighbour. */
enum { HARP_PACKET_SIZE = 2048, HARP_PACKET_DATA = HARP_PACKET_SIZE - 32 };
struct harp_packet {
  struct harp_packet *next;
  uint32_t seq;
  uint32_t offset; /* of the first unread byte */
  uint32_t length; /* bytes in data */
  uint8_t data[HARP_PACKET_DATA] __attribute__((aligned(8)));
};
_Static_assert(sizeof(struct harp_packet) <= HARP_PACKET_SIZE, "a packet buffer is 2 KiB");

#endif
