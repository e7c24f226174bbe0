/* SPDX-License-Identifier: Apache-2.0 */
/* At most so many of something in a second: what others can make this host say. */
#ifndef HARP_STACK_LIMIT_H
#define HARP_STACK_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* Begins with zeroes. */
struct harp_limit {
  uint64_t since; /* ns: start of the second that count counts */
  uint32_t count;
};

/* Counts one more; false: it is one too many. now: ns. */
static inline bool limit_allows(struct harp_limit *limit, uint64_t now, uint32_t most)
{
  if (now - limit->since >= 1000000000ull) {
    limit->since = now;
    limit->count = 0;
  }
  return limit->count++ < most;
}

#endif
