/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_CLOCK_H
#define HARP_BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Monotonic clock, nanoseconds. */
static inline uint64_t clock_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
