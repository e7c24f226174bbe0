/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's clock: CLOCK_MONOTONIC in nanoseconds. */
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

/* CLOCK_REALTIME: ns since 1970, for times that users see. */
static inline uint64_t harp_clock_wall_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* The time that a loop has waited, without the time in which its process was stopped. */
struct harp_run_time {
  uint64_t last; /* ns: last call of harp_ran_ns; 0: none */
  uint64_t ran;  /* ns */
};

/* Running time since the first call, ns. A loop calls it every few milliseconds, so only 50 ms
 * of a longer gap count: the rest is a pause. */
static inline uint64_t harp_ran_ns(struct harp_run_time *time)
{
  const uint64_t longest = 50000000;
  uint64_t now = harp_clock_ns();
  uint64_t gap = time->last ? now - time->last : 0;
  time->last = now;
  time->ran += gap < longest ? gap : longest;
  return time->ran;
}

#endif
