/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers from one seed (the SplitMix64 generator), equal on every machine. */
#ifndef HARP_TESTS_SIM_RANDOM_H
#define HARP_TESTS_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct sim_random {
  uint64_t state;
};

static inline uint64_t random_next(struct sim_random *random)
{
  uint64_t z = random->state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* A separate stream for each (seed, purpose). */
static inline struct sim_random random_stream(uint64_t seed, uint64_t purpose)
{
  struct sim_random random = {seed};
  random.state = random_next(&random) ^ (purpose + 1) * 0xd1342543de82ef95ull;
  random_next(&random);
  return random;
}

/* Returns 0 to n - 1; n > 0. */
static inline uint64_t random_below(struct sim_random *random, uint64_t n)
{
  return (uint64_t)(((__uint128_t)random_next(random) * n) >> 64);
}

/* Returns low to high, both included. */
static inline uint64_t random_between(struct sim_random *random, uint64_t low, uint64_t high)
{
  return low + random_below(random, high - low + 1);
}

static inline bool random_chance(struct sim_random *random, double probability)
{
  return probability > 0 && (double)(random_next(random) >> 11) * 0x1p-53 < probability;
}

/* Returns low to high, with every power of two equally likely; low > 0. */
static inline uint64_t random_scale(struct sim_random *random, uint64_t low, uint64_t high)
{
  int first = 63 - __builtin_clzll(low), last = 63 - __builtin_clzll(high);
  int power = first + (int)random_below(random, (uint64_t)(last - first + 1));
  uint64_t value = (1ull << power) + random_below(random, 1ull << power);
  return value < low ? low : value > high ? high : value;
}

#endif
