/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/early_read.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/link/link.h"

/*
 * NCCL 2.12 and later register each protocol's buffer of a connection apart. By default LL's has
 * 512 KiB (8 steps of 64 KiB) and LL128's 4800 KiB (8 of 600 KiB). Simple's buffers have a power of
 * two, at least this many bytes. Older releases register all three at once, which is none of these.
 */
enum { SIMPLE_BUFFER_MIN = 1 << 20 };

void early_read_init(struct early_read *rule)
{
  const char *marks = getenv("NCCL_NET_OPTIONAL_RECV_COMPLETION");
  rule->unmarked = marks && marks[0] && strtoll(marks, NULL, 0) == 0; /* as NCCL reads it */
  rule->resized = getenv("NCCL_LL_BUFFSIZE") || getenv("NCCL_LL128_BUFFSIZE");
}

static bool is_simple_buffer(const struct early_read *rule, const struct net_region *region)
{
  size_t size = region ? region_size(region) : 0;
  return !rule->resized && size >= SIMPLE_BUFFER_MIN && (size & (size - 1)) == 0;
}

bool early_read_possible(const struct early_read *rule, enum net_completion completion,
                         const struct net_region *region)
{
  if (completion == NET_COMPLETION_OPTIONAL) {
    return true;
  }
  bool known = completion == NET_COMPLETION_NEEDED && !rule->unmarked;
  return !known && !is_simple_buffer(rule, region);
}

static void store_byte(uint8_t *to, uint8_t value)
{
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

void early_read_copy(uint8_t *to, const uint8_t *from, size_t length)
{
  size_t i = 0;
  for (; i < length && (uintptr_t)(to + i) % sizeof(uint64_t); i++) {
    store_byte(to + i, from[i]);
  }
  for (; i + sizeof(uint64_t) <= length; i += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, from + i, sizeof word);
    __atomic_store_n((uint64_t *)(to + i), word, __ATOMIC_RELEASE);
  }
  for (; i < length; i++) {
    store_byte(to + i, from[i]);
  }
}
