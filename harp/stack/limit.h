/* SPDX-License-Identifier: Apache-2.0 */
/* A rate limit per second. It bounds the packets that other hosts can make this host send. */
#ifndef HARP_STACK_LIMIT_H
#define HARP_STACK_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/time_units.h"

/* Initialise it with zeroes. */
struct harp_limit {
  uint64_t since; /* ns: start of the current second */
  uint32_t count;
};

/* Counts one event; false: the limit of `most` events in this second is exceeded. now: ns. */
static inline bool limit_allows(struct harp_limit *limit, uint64_t now, uint32_t most)
{
  if (now - limit->since >= NS_PER_S) {
    limit->since = now;
    limit->count = 0;
  }
  return limit->count++ < most;
}

#endif
