/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/algorithms.h"

#include "harp/collectives/links.h"

/* Sizes, see harp_group_choose. */
enum {
  SHORT = 0,
  SHORT_FOR_TWO = 3, /* 256 KiB */
  RING = 4,          /* above 256 KiB: its 2 (N - 1) rounds then cost little */
  DOUBLING_MOST = 5, /* 1 MiB: a rank keeps a result of each round */
  ALL_LARGER = HARP_SIZES - 1,
};

/* Two ranks send no more bytes by doubling than by shares, in one round instead of two: 128 KiB
 * took half the time. */
static enum harp_algorithm fixed_rule(int ranks, bool wide, int size)
{
  if (size <= (ranks == 2 ? SHORT_FOR_TWO : SHORT)) {
    return HARP_DOUBLING;
  }
  return ranks > 2 && !wide && size >= RING ? HARP_RING : HARP_SHARES;
}

void algorithms_init(struct algorithms *algorithms, int ranks)
{
  algorithms->ranks = ranks;
  for (int wide = 0; wide < 2; wide++) {
    for (int size = 0; size < HARP_SIZES; size++) {
      algorithms->of[wide][size] = (uint8_t)fixed_rule(ranks, wide, size);
    }
  }
}

static bool is_possible(int ranks, bool wide, int size, int algorithm)
{
  bool power = (ranks & (ranks - 1)) == 0;
  switch (algorithm) {
  case HARP_DOUBLING: return size <= DOUBLING_MOST;
  case HARP_SHARES: return true;
  case HARP_HALVING: return power && ranks > 2 && !wide && size < ALL_LARGER;
  case HARP_RING: return ranks > 2 && !wide;
  default: return false;
  }
}

bool algorithms_choose(struct algorithms *algorithms, bool wide, int size, int algorithm)
{
  bool known = size > SHORT && size < HARP_SIZES;
  if (!known || !is_possible(algorithms->ranks, wide, size, algorithm)) {
    return false;
  }
  algorithms->of[wide][size] = (uint8_t)algorithm;
  return true;
}

enum harp_algorithm algorithms_find(const struct algorithms *algorithms, bool wide, size_t bytes)
{
  int size = 0;
  for (size_t most = LINK_SHORT; size < ALL_LARGER && bytes > most; most *= 2) {
    size++;
  }
  return (enum harp_algorithm)algorithms->of[wide][size];
}
