/* SPDX-License-Identifier: Apache-2.0 */
/* The one clock of the engine: CLOCK_MONOTONIC in nanoseconds. */
#ifndef HARP_ENGINE_CLOCK_H
#define HARP_ENGINE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t harp_clock_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void harp_sleep_us(unsigned us)
{
  struct timespec t = {us / 1000000, us % 1000000 * 1000L};
  nanosleep(&t, NULL);
}

/* The wall's clock, for people: ns since 1970. */
static inline uint64_t harp_clock_wall_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#endif
