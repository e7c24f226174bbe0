/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective on 1 to 9 ranks, with sizes for each algorithm. The schedules of all ranks must
 * match, end, and give the right elements.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <stdio.h>

#include "tests/collectives/plan_scene.h"

enum { RANKS_MOST = 9 };

static const int dtypes[] = {HARP_INT64, HARP_FLOAT32, HARP_BFLOAT16};
static const size_t counts[] = {0, 1, 1000, 20000, 90001};

/* Whether a rank has received all messages. The plugin may be done with its sends at once. */
static bool has_received_all(struct world *world, int rank)
{
  for (int peer = 0; peer < world->ranks; peer++) {
    if (schedule_receives(&world->schedules[rank], peer)->head != NO_STEP) {
      return false;
    }
  }
  return true;
}

/* A barrier ends on no rank while one has not begun. */
static const char *run_barrier(struct world *world, int late)
{
  world->asleep = late;
  const char *wrong = world_run(world);
  for (int rank = 0; rank < world->ranks && world->ranks > 1 && !wrong; rank++) {
    wrong = has_received_all(world, rank) ? "a barrier ends early" : NULL;
  }
  world->asleep = -1;
  return wrong ? wrong : world_run(world);
}

static const char *run(const struct scene *scene, struct world *world)
{
  const char *wrong = scene->kind == HARP_BARRIER ? run_barrier(world, scene->root)
                                                  : world_run(world);
  for (int rank = 0; rank < scene->ranks && !wrong; rank++) {
    wrong = world_done(world, rank) ? NULL : "a schedule does not end";
  }
  return wrong || scene_is_right(scene) ? wrong : "an element is wrong";
}

static bool check_by(int algorithm, int kind, int ranks, int dtype, size_t count, unsigned seed)
{
  struct world world;
  struct scene scene = {
      .kind = kind, .dtype = dtype, .ranks = ranks, .count = count, .algorithm = algorithm};
  world_init(&world, ranks, seed);
  scene.root = (int)world_draw(&world, (unsigned)ranks);
  scene_make(&scene);
  const char *wrong = NULL;
  for (int rank = 0; rank < ranks && !wrong; rank++) {
    wrong = scene_plan(&scene, &world, rank, &world.schedules[rank]) ? NULL : "no plan";
  }
  if (!wrong) {
    wrong = run(&scene, &world);
  }
  scene_free(&scene);
  world_free(&world);
  if (wrong) {
    printf("kind %d, %d ranks, type %d, %zu elements, algorithm %d: %s\n", kind, ranks, dtype,
           count, algorithm, wrong);
  }
  return !wrong;
}

static bool check(int kind, int ranks, int dtype, size_t count, unsigned seed)
{
  return check_by(FIXED_RULE, kind, ranks, dtype, count, seed);
}

/* Movements do not look at the elements, so one type is enough for them. */
static unsigned types_of(int kind)
{
  bool reduces = kind == HARP_ALL_REDUCE || kind == HARP_REDUCE || kind == HARP_REDUCE_SCATTER;
  return reduces ? sizeof dtypes / sizeof dtypes[0] : 1;
}

/* Many ranks with many views take long, and reach no other code. */
static unsigned counts_of(int kind, int ranks)
{
  return sizeof counts / sizeof counts[0] - (ranks > 4 && kind > HARP_BROADCAST);
}

/* Sums and pipelines of so many slices that the staging is used again. */
static unsigned check_long_ones(unsigned seed)
{
  static const int kinds[] = {HARP_ALL_REDUCE, HARP_REDUCE, HARP_BROADCAST, HARP_REDUCE_SCATTER};
  unsigned wrong = 0;
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    for (int ranks = 2; ranks <= 3; ranks++) {
      size_t shares = kinds[i] == HARP_REDUCE_SCATTER ? 1 : (size_t)ranks;
      size_t bytes = shares * (LINK_STAGED + 2) * LINK_SLICE;
      wrong += !check(kinds[i], ranks, HARP_FLOAT32, bytes / 4 + 9, ++seed);
      wrong += !check(kinds[i], ranks, HARP_BFLOAT16, bytes / 2 + 9, ++seed);
    }
  }
  return wrong;
}

/* All_reduce by each algorithm, also for sizes for which no group would choose it. */
static unsigned check_algorithms(unsigned seed)
{
  static const size_t sizes[] = {9000, 70001, 300001}; /* elements */
  unsigned wrong = 0;
  for (int algorithm = HARP_DOUBLING; algorithm <= HARP_RING; algorithm++) {
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
      for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        wrong += !check_by(algorithm, HARP_ALL_REDUCE, ranks, HARP_FLOAT32, sizes[i], ++seed);
        wrong += !check_by(algorithm, HARP_ALL_REDUCE, ranks, HARP_BFLOAT16, sizes[i], ++seed);
      }
    }
  }
  /* Shares are rounded up, so many of them are longer than a short tensor. */
  wrong += !check_by(HARP_HALVING, HARP_ALL_REDUCE, WORLD_MOST, HARP_FLOAT32, 8193, ++seed);
  return wrong;
}

int main(void)
{
  unsigned checks = 0, wrong = 0;
  for (int kind = 0; kind <= HARP_BARRIER; kind++) {
    for (int ranks = 1; ranks <= RANKS_MOST; ranks += ranks < 5 ? 1 : 2) {
      for (unsigned type = 0; type < types_of(kind); type++) {
        for (unsigned i = 0; i < counts_of(kind, ranks); i++) {
          wrong += !check(kind, ranks, dtypes[type], counts[i], ++checks);
        }
      }
    }
  }
  wrong += check_long_ones(checks);
  wrong += check_algorithms(checks);
  printf("%u plans, and long ones; %u wrong\n", checks, wrong);
  return wrong > 0;
}
