/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/algorithms.h"

#include "harp/collectives/links.h"

/* Classes of sizes. */
enum {
  SHORT = 0,
  SHORT_FOR_TWO = 3,    /* 256 KiB */
  FIRST_OF_RING = 4,    /* above 256 KiB: its 2 (N - 1) rounds then cost little */
  LAST_OF_DOUBLING = 5, /* 1 MiB: a rank keeps a result of each round */
  ALL_LARGER = HARP_SIZE_CLASSES - 1,
};

static int class_of(size_t bytes)
{
  int size_class = 0;
  for (size_t most = LINK_SHORT; size_class < ALL_LARGER && bytes > most; most *= 2) {
    size_class++;
  }
  return size_class;
}

/* Two ranks send no more bytes by doubling than by pairwise exchange, in one round instead of two:
 * 128 KiB took half the time. */
static enum harp_algorithm fixed_for(int ranks, bool wide, int size_class)
{
  if (size_class <= (ranks == 2 ? SHORT_FOR_TWO : SHORT)) {
    return HARP_DOUBLING;
  }
  return ranks > 2 && !wide && size_class >= FIRST_OF_RING ? HARP_RING : HARP_PAIRWISE;
}

enum harp_algorithm algorithms_fixed(int ranks, bool wide, size_t bytes)
{
  return fixed_for(ranks, wide, class_of(bytes));
}

void algorithms_init(struct algorithms *algorithms, int ranks)
{
  algorithms->ranks = ranks;
  for (int wide = 0; wide < 2; wide++) {
    for (int size_class = 0; size_class < HARP_SIZE_CLASSES; size_class++) {
      algorithms->of[wide][size_class] = (uint8_t)fixed_for(ranks, wide, size_class);
    }
  }
}

static bool is_possible(int ranks, bool wide, int size_class, int algorithm)
{
  bool power = (ranks & (ranks - 1)) == 0;
  switch (algorithm) {
  case HARP_DOUBLING: return size_class <= LAST_OF_DOUBLING;
  case HARP_PAIRWISE: return true;
  case HARP_HALVING: return power && ranks > 2 && !wide && size_class < ALL_LARGER;
  case HARP_RING: return ranks > 2 && !wide;
  default: return false;
  }
}

int algorithms_choose(struct algorithms *algorithms, bool wide, int size_class, int algorithm)
{
  bool known = size_class > SHORT && size_class < HARP_SIZE_CLASSES;
  if (!known || !is_possible(algorithms->ranks, wide, size_class, algorithm)) {
    return -1;
  }
  uint8_t *chosen = &algorithms->of[wide][size_class];
  int before = *chosen;
  *chosen = (uint8_t)algorithm;
  return before;
}

enum harp_algorithm algorithms_find(const struct algorithms *algorithms, bool wide, size_t bytes)
{
  return (enum harp_algorithm)algorithms->of[wide][class_of(bytes)];
}
