/* SPDX-License-Identifier: Apache-2.0 */
/* The out-of-order queue: blocks beyond holes. */
#ifndef HARP_STACK_TCP_OOO_H
#define HARP_STACK_TCP_OOO_H

#include <stdint.h>

#include "harp/stack/packet.h"

struct harp_tcp;
enum {
  TCP_MAX_RUNS = 64, /* blocks beyond holes, per connection */
  TCP_OOO_NONE = 255,
};

/* A run of received bytes beyond a hole. */
struct tcp_ooo_block {
  struct harp_packet *first, *last;
  uint32_t start, end;
};

/* A connection's runs (tcp_ooo.c), in the memory of a packet buffer. */
struct tcp_ooo_queue {
  uint8_t count;
  uint8_t newest;              /* the place of the one that grew last */
  uint8_t order[TCP_MAX_RUNS]; /* places: count of them by sequence, then those that are free */
  uint8_t newer[TCP_MAX_RUNS]; /* places, by place: of those that grew last after it */
  uint8_t older[TCP_MAX_RUNS]; /* and before; TCP_OOO_NONE: none */
  struct tcp_ooo_block run[TCP_MAX_RUNS];
};
_Static_assert(sizeof(struct tcp_ooo_queue) <= HARP_PACKET_SIZE, "it fits a packet buffer");

/* By sequence: 0 is the first run; NULL: there are not so many. */
struct tcp_ooo_block *tcp_ooo_block_at(const struct harp_tcp *tcp, uint32_t index);
/* How many runs begin at seq or before. */
uint32_t tcp_ooo_blocks_before(const struct harp_tcp *tcp, uint32_t seq);
/* An empty run at seq, before the one that is index-th now, the newest by time; keep: packets to
 * leave in the pool. NULL: too many, or no memory. */
struct tcp_ooo_block *tcp_ooo_insert(struct harp_tcp *tcp, uint32_t index, uint32_t seq,
                                     uint32_t keep);
/* It has grown, and is the newest. */
void tcp_ooo_touch(struct harp_tcp *tcp, const struct tcp_ooo_block *run);
/* Its packets are the caller's. With the last run its table goes. */
void tcp_ooo_remove(struct harp_tcp *tcp, uint32_t index);
/* By when they last grew; NULL: none. */
const struct tcp_ooo_block *tcp_ooo_newest(const struct harp_tcp *tcp);
const struct tcp_ooo_block *tcp_ooo_older(const struct harp_tcp *tcp,
                                          const struct tcp_ooo_block *run);

#endif
