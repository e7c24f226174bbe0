/* SPDX-License-Identifier: Apache-2.0 */
/* The out-of-order queue: received blocks beyond a hole. */
#ifndef HARP_STACK_TCP_OOO_H
#define HARP_STACK_TCP_OOO_H

#include <stdint.h>

#include "harp/stack/packet.h"

struct harp_tcp;
enum {
  TCP_MAX_OOO_BLOCKS = 64, /* out-of-order blocks, per connection */
  TCP_OOO_NONE = 255,
};

/* A contiguous block of received bytes beyond a hole. */
struct tcp_ooo_block {
  struct harp_packet *first, *last;
  uint32_t start, end;
};

/* A connection's out-of-order blocks (tcp_ooo.c), in the memory of a packet buffer. A slot is an
 * index of block[]. */
struct tcp_ooo_queue {
  uint8_t count;
  uint8_t newest; /* slot of the block that grew last */
  uint8_t
      order[TCP_MAX_OOO_BLOCKS]; /* slots: first those in use, by sequence; then the free ones */
  uint8_t newer[TCP_MAX_OOO_BLOCKS]; /* per slot: the slot of the block that grew next after it */
  uint8_t older[TCP_MAX_OOO_BLOCKS]; /* per slot: the one that grew before it; TCP_OOO_NONE: none */
  struct tcp_ooo_block block[TCP_MAX_OOO_BLOCKS];
};
_Static_assert(sizeof(struct tcp_ooo_queue) <= HARP_PACKET_SIZE, "it fits a packet buffer");

/* Returns a block by its index in sequence order, from 0; NULL: no such block. */
struct tcp_ooo_block *tcp_ooo_block_at(const struct harp_tcp *tcp, uint32_t index);
/* Returns how many blocks begin at seq or before. */
uint32_t tcp_ooo_blocks_before(const struct harp_tcp *tcp, uint32_t seq);
/* Inserts an empty block at seq, before the block with this index, and makes it the newest. keep:
 * packet buffers to leave in the pool. NULL: too many blocks, or no memory. */
struct tcp_ooo_block *tcp_ooo_insert(struct harp_tcp *tcp, uint32_t index, uint32_t seq,
                                     uint32_t keep);
/* The block has grown: makes it the newest. */
void tcp_ooo_touch(struct harp_tcp *tcp, const struct tcp_ooo_block *block);
/* Removes a block; the caller owns its packets. Frees the table with the last block. */
void tcp_ooo_remove(struct harp_tcp *tcp, uint32_t index);
/* Blocks in order of their last growth, the newest first; NULL: none. */
const struct tcp_ooo_block *tcp_ooo_newest(const struct harp_tcp *tcp);
const struct tcp_ooo_block *tcp_ooo_older(const struct harp_tcp *tcp,
                                          const struct tcp_ooo_block *block);

#endif
