/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of out-of-order blocks. It uses a packet buffer, and exists only while there is a
 * hole. So the number of blocks is bounded, and the table counts against the packet memory. A
 * block keeps its slot in the table. The array `order` lists the slots by sequence, and then the
 * free slots. Lookup is a binary search; insertion moves at most 64 bytes. The arrays `newer` and
 * `older` link the slots by the last growth of their blocks.
 */
#include "harp/stack/tcp/tcp_ooo.h"

#include <string.h>

#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

static struct tcp_ooo_queue *begin(struct harp_tcp *tcp)
{
  struct tcp_ooo_queue *ooo = pool_get(&tcp->stack->packets);
  if (ooo) {
    ooo->count = 0;
    ooo->newest = TCP_OOO_NONE;
    for (uint8_t i = 0; i < TCP_MAX_OOO_BLOCKS; i++) {
      ooo->order[i] = i;
    }
  }
  return ooo;
}

/* Removes a slot from the list by last growth. */
static void leave_time(struct tcp_ooo_queue *ooo, uint8_t slot)
{
  uint8_t newer = ooo->newer[slot], older = ooo->older[slot];
  if (older != TCP_OOO_NONE) {
    ooo->newer[older] = newer;
  }
  *(newer != TCP_OOO_NONE ? &ooo->older[newer] : &ooo->newest) = older;
}

/* Adds a slot to the list by last growth, as the newest. */
static void join_time(struct tcp_ooo_queue *ooo, uint8_t slot)
{
  ooo->newer[slot] = TCP_OOO_NONE;
  ooo->older[slot] = ooo->newest;
  if (ooo->newest != TCP_OOO_NONE) {
    ooo->newer[ooo->newest] = slot;
  }
  ooo->newest = slot;
}

static struct tcp_ooo_block *block_at(struct tcp_ooo_queue *ooo, uint32_t index)
{
  return &ooo->block[ooo->order[index]];
}

struct tcp_ooo_block *tcp_ooo_block_at(const struct harp_tcp *tcp, uint32_t index)
{
  struct tcp_ooo_queue *ooo = tcp->rcv.ooo;
  return ooo && index < ooo->count ? block_at(ooo, index) : NULL;
}

uint32_t tcp_ooo_blocks_before(const struct harp_tcp *tcp, uint32_t seq)
{
  struct tcp_ooo_queue *ooo = tcp->rcv.ooo;
  if (!ooo) {
    return 0;
  }
  uint32_t low = 0, high = ooo->count;
  uint32_t middle = high - 1; /* after a single loss all new data extends the last block */
  uint64_t steps = 0;
  for (; low < high; steps++) {
    bool before = seq_le(block_at(ooo, middle)->start, seq);
    *(before ? &low : &high) = middle + before;
    middle = (low + high) / 2;
  }
  COUNT_N(tcp->stack, tcp_reassembly_steps, steps);
  return low;
}

struct tcp_ooo_block *tcp_ooo_insert(struct harp_tcp *tcp, uint32_t index, uint32_t seq,
                                     uint32_t keep)
{
  struct tcp_ooo_queue *ooo = tcp->rcv.ooo;
  if (!ooo && tcp->stack->packets.available > keep) {
    ooo = tcp->rcv.ooo = begin(tcp);
  }
  if (!ooo || ooo->count == TCP_MAX_OOO_BLOCKS) {
    return NULL;
  }
  uint8_t *at = ooo->order + index;
  uint8_t slot = ooo->order[ooo->count];
  memmove(at + 1, at, ooo->count++ - index);
  *at = slot;
  struct tcp_ooo_block *block = &ooo->block[slot];
  *block = (struct tcp_ooo_block){.start = seq, .end = seq};
  join_time(ooo, slot);
  tcp->rcv.fin_newest = false;
  return block;
}

void tcp_ooo_touch(struct harp_tcp *tcp, const struct tcp_ooo_block *block)
{
  uint8_t slot = (uint8_t)(block - tcp->rcv.ooo->block);
  leave_time(tcp->rcv.ooo, slot);
  join_time(tcp->rcv.ooo, slot);
  tcp->rcv.fin_newest = false;
}

void tcp_ooo_remove(struct harp_tcp *tcp, uint32_t index)
{
  struct tcp_ooo_queue *ooo = tcp->rcv.ooo;
  uint8_t *at = ooo->order + index;
  uint8_t slot = *at;
  leave_time(ooo, slot);
  memmove(at, at + 1, --ooo->count - index);
  ooo->order[ooo->count] = slot;
  if (ooo->count == 0) {
    tcp->rcv.ooo = NULL;
    pool_put(&tcp->stack->packets, ooo);
  }
}

const struct tcp_ooo_block *tcp_ooo_newest(const struct harp_tcp *tcp)
{
  return tcp->rcv.ooo ? &tcp->rcv.ooo->block[tcp->rcv.ooo->newest] : NULL;
}

const struct tcp_ooo_block *tcp_ooo_older(const struct harp_tcp *tcp,
                                          const struct tcp_ooo_block *block)
{
  uint8_t older = tcp->rcv.ooo->older[block - tcp->rcv.ooo->block];
  return older != TCP_OOO_NONE ? &tcp->rcv.ooo->block[older] : NULL;
}
