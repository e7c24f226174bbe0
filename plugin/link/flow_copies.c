/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of short messages, until they are acknowledged. A send whose bytes are copied is done at
 * once, as with kernel TCP; otherwise it is done one round trip later. The copies lie in a ring,
 * because a flow's bytes are acknowledged in the order in which they were pushed. The ring begins
 * anew whenever it is empty, so few short messages stay in the processor's cache.
 */
#include <string.h>
#include <sys/mman.h>

#include "plugin/link/link.h"

enum {
  PAGE = 4096,
  CACHE_LINE = 64,
  RING_SIZE = 256 << 10, /* bytes; seven of the longest messages */
};

/*
 * Returns the place of a copy in the ring: `at`, or soon after it. A long copy gets the same offset
 * in its page as data. Copying is slow at some other offsets, by 4K aliasing (packet_tx.c).
 */
static uint32_t position(uint32_t at, const uint8_t *data, uint32_t length)
{
  return length < PAGE / 2 ? at : at + (uint32_t)(((uintptr_t)data - at) % PAGE);
}

/* Whole pages, which go back to the system when the flow ends. The heap might keep them. */
static bool make_ring(struct copy_ring *ring)
{
  void *memory = mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ring->memory = memory == MAP_FAILED ? NULL : memory;
  return ring->memory;
}

const uint8_t *flow_copy(struct link_flow *flow, const uint8_t *data, uint32_t length,
                         uint32_t *taken)
{
  struct copy_ring *ring = &flow->copies;
  if (length > FLOW_COPY_MOST) {
    return NULL;
  }
  if (!ring->memory && !make_ring(ring)) {
    return NULL;
  }
  uint32_t from = ring->used > 0 ? ring->head : 0, unused = 0;
  uint32_t begin = position(from, data, length);
  if (begin + length > RING_SIZE) { /* no message lies across the end */
    unused = RING_SIZE - from;
    from = 0;
    begin = position(0, data, length);
  }
  uint32_t end = (begin + length + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
  if (ring->used + unused + end - from > RING_SIZE) {
    return NULL;
  }
  *taken = unused + end - from;
  ring->used += *taken;
  ring->head = end;
  if (length > 0) {
    memcpy(ring->memory + begin, data, length);
  }
  return ring->memory + begin;
}

void flow_copy_acked(struct link_flow *flow, uint32_t taken) { flow->copies.used -= taken; }

void flow_copies_free(struct link_flow *flow)
{
  if (flow->copies.memory) {
    munmap(flow->copies.memory, RING_SIZE);
  }
}
