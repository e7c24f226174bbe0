/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective on 1 to 4 hosts with 2 to 8 ranks that have windows. Each rank runs some
 * operations, and may begin the next one while others are still in an earlier one. Steps run in a
 * random order. In every other check, one rank runs only when the others cannot.
 *
 * On several hosts, each byte must cross the network once for each host that needs it, and no link
 * may lead to the same host.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <limits.h>
#include <malloc.h>
#include <stdio.h>

#include "tests/collectives/plan_scene.h"

enum {
  FEW = 6, /* operations of a rank */
  MANY = 1 + WORLD_LATER,
};

static const int dtypes[] = {HARP_FLOAT32, HARP_BFLOAT16, HARP_UINT8};

struct shape {
  int hosts, local; /* ranks of a host */
};

/* A barrier ends on no rank while one has not begun. */
static const char *check_barrier(struct world *world, int late)
{
  world->asleep = late;
  const char *wrong = world_run(world);
  for (int rank = 0; rank < world->ranks && !wrong; rank++) {
    wrong = world->later[rank][FEW - 2].ranks == 0 ? "a barrier ends early" : NULL;
  }
  world->asleep = -1;
  return wrong;
}

static const char *run(struct scene *scenes, int operations, struct world *world)
{
  bool waits = scenes[0].kind == HARP_BARRIER && world->windows[0].hosts == 1;
  const char *wrong = waits ? check_barrier(world, scenes[0].root) : NULL;
  wrong = wrong ? wrong : world_run(world);
  for (int rank = 0; rank < world->ranks && !wrong; rank++) {
    wrong = world_done(world, rank) ? NULL : "a schedule does not end";
  }
  for (int operation = 0; operation < operations && !wrong; operation++) {
    wrong = scene_is_right(&scenes[operation]) ? NULL : "an element is wrong";
  }
  return wrong;
}

/* The last size has more chunks than the windows have buffers. Operations that divide a chunk need
 * fewer elements for that, and those that give in turn for each host. A broadcast divides its
 * tensor among the ranks of a host. */
static size_t count_of(int kind, struct shape shape, int size)
{
  size_t hosts = (size_t)shape.hosts, local = (size_t)shape.local;
  static const size_t counts[] = {0, 1, 1000, 20000};
  size_t many = (WINDOW_BUFFERS + 1) * WINDOW_CHUNK / 4 + 100;
  if (size < 4) {
    return counts[size];
  }
  switch (kind) {
  case HARP_REDUCE_SCATTER:
  case HARP_ALL_TO_ALL:
  case HARP_SCATTER: return many / local;
  case HARP_ALL_GATHER: return many / hosts;
  case HARP_BROADCAST: return hosts > 1 ? many * local : many;
  default: return many;
  }
}

/* Long tensors of many ranks of several hosts take long, and reach no other code. */
static bool has_long_one(int kind, struct shape shape, int type)
{
  int ranks = shape.hosts * shape.local;
  return ranks <= 4 || (type == 0 && (shape.hosts == 1 || ranks <= 6 || kind <= HARP_REDUCE));
}

/* Operations that reduce meet all types. */
static int types_of(int kind)
{
  bool reduces = kind == HARP_ALL_REDUCE || kind == HARP_REDUCE || kind == HARP_REDUCE_SCATTER;
  return reduces ? sizeof dtypes / sizeof dtypes[0] : 1;
}

/* Between hosts, only operations that use windows there. */
static bool is_planned(int kind, struct shape shape)
{
  return shape.hosts == 1 || kind <= HARP_REDUCE_SCATTER;
}

/* Operations of the kind in question, the first and the fifth with the size in question, and
 * others. */
static void choose(struct scene *scene, struct world *world, struct shape shape, int size)
{
  if (scene->number % 2 == 1) {
    do {
      scene->kind = (int)world_draw(world, HARP_BARRIER + 1);
    } while (!is_planned(scene->kind, shape));
  }
  if (scene->number % 4 > 0) {
    size = (int)world_draw(world, 4);
  }
  scene->ranks = world->ranks;
  scene->root = (int)world_draw(world, (unsigned)world->ranks);
  scene->count = count_of(scene->kind, shape, size);
  scene->ragged = world_draw(world, 2) == 1 ? 4 : 0;
}

static const char *plan_all(struct scene *scene, struct world *world)
{
  const char *wrong = NULL;
  scene_make(scene);
  for (int rank = 0; rank < world->ranks && !wrong; rank++) {
    struct schedule *schedule = &world->schedules[rank];
    if (scene->number > 0) {
      schedule = &world->later[rank][scene->number - 1];
      schedule_init(schedule, world->ranks);
    }
    wrong = scene_plan(scene, world, rank, schedule) ? NULL : "no plan";
  }
  return wrong;
}

static void clear(struct scene *scenes, int operations, struct world *world)
{
  for (int operation = 0; operation < operations; operation++) {
    scene_free(&scenes[operation]);
  }
  world_free(world);
}

static bool check(int kind, struct shape shape, int dtype, int size, unsigned seed)
{
  struct world world;
  struct scene scenes[FEW] = {{0}};
  const char *wrong = NULL;
  world_init(&world, shape.hosts * shape.local, seed);
  world_share(&world, shape.local);
  world.lazy = seed % 2 ? (int)world_draw(&world, (unsigned)world.ranks) : -1;
  for (int number = 0; number < FEW && !wrong; number++) {
    scenes[number] = (struct scene){.kind = kind, .dtype = dtype, .number = number};
    choose(&scenes[number], &world, shape, size);
    wrong = plan_all(&scenes[number], &world);
  }
  wrong = wrong ? wrong : run(scenes, FEW, &world);
  clear(scenes, FEW, &world);
  if (wrong) {
    printf("check %u: kind %d, %d hosts of %d ranks, type %d, size %d: %s\n", seed, kind,
           shape.hosts, shape.local, dtype, size, wrong);
  }
  return !wrong;
}

/* One kind with one root, and more operations than are under way at once. A rank runs only when the
 * others cannot, so they run ahead as far as they may. */
static bool check_many(int kind, int lazy, unsigned seed)
{
  const struct shape shape = {1, 3};
  struct world world;
  struct scene scenes[MANY] = {{0}};
  const char *wrong = NULL;
  world_init(&world, shape.local, seed);
  world_share(&world, shape.local);
  world.lazy = lazy;
  for (int number = 0; number < MANY && !wrong; number++) {
    scenes[number] = (struct scene){
        .kind = kind, .dtype = HARP_FLOAT32, .ranks = world.ranks, .count = 9, .number = number};
    wrong = plan_all(&scenes[number], &world);
  }
  wrong = wrong ? wrong : run(scenes, MANY, &world);
  clear(scenes, MANY, &world);
  if (wrong) {
    printf("many: kind %d, lazy rank %d: %s\n", kind, lazy, wrong);
  }
  return !wrong;
}

/* What all ranks must send to other hosts, in views of an operation. */
static size_t views_across(int kind, struct shape shape)
{
  size_t others = (size_t)shape.hosts - 1, ranks = (size_t)(shape.hosts * shape.local);
  return kind == HARP_BROADCAST ? others : others * ranks;
}

/* One operation of a kind, whose ranks have views of one size. */
static bool check_bytes(int kind, struct shape shape, size_t count, unsigned seed)
{
  struct world world;
  struct scene scene = {
      .kind = kind, .dtype = HARP_FLOAT32, .count = count, .algorithm = FIXED_RULE};
  world_init(&world, shape.hosts * shape.local, seed);
  world_share(&world, shape.local);
  scene.ranks = world.ranks;
  scene.root = (int)world_draw(&world, (unsigned)world.ranks);
  const char *wrong = plan_all(&scene, &world);
  wrong = wrong ? wrong : run(&scene, 1, &world);
  size_t expected = views_across(kind, shape) * count * sizeof(float);
  if (!wrong && (world.inside != 0 || world.across != expected)) {
    wrong = "the bytes of messages";
  }
  if (wrong) {
    printf("bytes: kind %d, %d hosts of %d ranks: %s: %zu inside hosts, %zu and not %zu across\n",
           kind, shape.hosts, shape.local, wrong, world.inside, world.across, expected);
  }
  clear(&scene, 1, &world);
  return !wrong;
}

/* Sums for one host only, so the other one does not wait for them: it sends as far ahead as it may.
 * Its messages are acknowledged late, or folded late. */
static bool check_sums_ahead(unsigned seed)
{
  const struct shape shape = {2, 2};
  struct world world;
  struct scene scene = {.kind = HARP_REDUCE_SCATTER,
                        .algorithm = FIXED_RULE,
                        .dtype = HARP_FLOAT32,
                        .ranks = 4,
                        .ragged = 2,
                        .count = 6 * LINK_SLICE / sizeof(float)};
  world_init(&world, scene.ranks, seed);
  world_share(&world, shape.local);
  world.slow = seed % 2 ? 0 : 1;
  world.lazy = seed % 2 ? -1 : 1;
  const char *wrong = plan_all(&scene, &world);
  wrong = wrong ? wrong : run(&scene, 1, &world);
  clear(&scene, 1, &world);
  if (wrong) {
    printf("check %u: sums for one of two hosts: %s\n", seed, wrong);
  }
  return !wrong;
}

int main(void)
{
  mallopt(M_MMAP_MAX, 0); /* pages that are used again cost less than new ones */
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  static const struct shape shapes[] = {{1, 2}, {1, 3}, {1, 4}, {1, 8},
                                        {2, 2}, {2, 4}, {3, 2}, {4, 2}};
  unsigned checks = 0, wrong = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int kind = 0; kind <= HARP_BARRIER; kind++) {
      for (int type = 0; type < types_of(kind) && is_planned(kind, shapes[i]); type++) {
        int sizes = has_long_one(kind, shapes[i], type) ? 5 : 4;
        for (int size = 0; size < sizes; size++) {
          wrong += !check(kind, shapes[i], dtypes[type], size, ++checks);
        }
      }
    }
  }
  for (int kind = 0; kind <= HARP_BARRIER; kind++) {
    for (int lazy = 0; lazy < 2; lazy++) { /* the root, which is rank 0, or another */
      wrong += !check_many(kind, lazy, ++checks);
    }
  }
  for (int kind = HARP_BROADCAST; kind <= HARP_REDUCE_SCATTER; kind++) {
    for (size_t i = 4; i < sizeof shapes / sizeof shapes[0]; i++) {
      for (size_t count = 100; count <= 100000; count *= 1000) {
        wrong += !check_bytes(kind, shapes[i], count, ++checks);
      }
    }
  }
  for (int i = 0; i < 4; i++) {
    wrong += !check_sums_ahead(++checks);
  }
  printf("%u plans, %u wrong\n", checks, wrong);
  return wrong > 0;
}
