/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_DPDK_GLUE_CLOCK_H
#define HARP_DPDK_GLUE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC. */
static inline uint64_t harp_monotonic_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline int64_t harp_monotonic_ms(void) { return (int64_t)(harp_monotonic_ns() / 1000000); }

#endif
