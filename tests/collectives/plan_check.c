/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective on 1 to 9 ranks, with sizes for each algorithm. The schedules of all ranks must
 * match, end, and give the right elements.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/collectives/half.h"
#include "tests/collectives/plan_world.h"

static const int dtypes[] = {HARP_INT64, HARP_FLOAT32, HARP_BFLOAT16};
static const size_t sizes[] = {8, 4, 2};
static const size_t counts[] = {0, 1, 1000, 20000, 90001};

struct scene {
  struct world world;
  int kind, root;
  unsigned type; /* index of dtypes */
  size_t count;  /* elements of a view */
  struct harp_view in[WORLD_MOST][WORLD_MOST], out[WORLD_MOST][WORLD_MOST];
};

/* Sums of nine such numbers are exact in 8 bits. */
static int64_t input(int rank, int part, size_t i)
{
  return (int64_t)((i * 3 + (size_t)rank * 7 + (size_t)part * 5) % 11);
}

static void set(const struct scene *scene, const struct harp_view *view, size_t i, int64_t value)
{
  switch (dtypes[scene->type]) {
  case HARP_INT64: ((int64_t *)view->data)[i] = value; break;
  case HARP_FLOAT32: ((float *)view->data)[i] = (float)value; break;
  default: ((uint16_t *)view->data)[i] = float_to_bfloat16((float)value);
  }
}

static int64_t get(const struct scene *scene, const struct harp_view *view, size_t i)
{
  switch (dtypes[scene->type]) {
  case HARP_INT64: return ((int64_t *)view->data)[i];
  case HARP_FLOAT32: return (int64_t)((float *)view->data)[i];
  default: return (int64_t)bfloat16_to_float(((uint16_t *)view->data)[i]);
  }
}

/* The views of each rank for the inputs, and as many for the outputs. */
static int parts(const struct scene *scene)
{
  bool single = scene->kind == HARP_ALL_REDUCE || scene->kind == HARP_REDUCE ||
                scene->kind == HARP_BROADCAST || scene->kind == HARP_BARRIER;
  return single ? 1 : scene->world.ranks;
}

static void make_views(struct scene *scene)
{
  size_t bytes = scene->count * sizes[scene->type];
  for (int rank = 0; rank < scene->world.ranks; rank++) {
    for (int part = 0; part < parts(scene); part++) {
      scene->in[rank][part] = (struct harp_view){calloc(1, bytes + 1), bytes};
      scene->out[rank][part] = (struct harp_view){calloc(1, bytes + 1), bytes};
      for (size_t i = 0; i < scene->count; i++) {
        set(scene, &scene->in[rank][part], i, input(rank, part, i));
        set(scene, &scene->out[rank][part], i, input(rank, part, i)); /* of those in place */
      }
    }
  }
}

static void free_views(struct scene *scene)
{
  for (int rank = 0; rank < scene->world.ranks; rank++) {
    for (int part = 0; part < parts(scene); part++) {
      free(scene->in[rank][part].data);
      free(scene->out[rank][part].data);
    }
  }
}

static int64_t sum(const struct scene *scene, int part, size_t i)
{
  int64_t total = 0;
  for (int rank = 0; rank < scene->world.ranks; rank++) {
    total += input(rank, part, i);
  }
  return total;
}

/* What element i of out[rank][part] must be, for the views that the operation writes. */
static int64_t expected(const struct scene *scene, int rank, int part, size_t i)
{
  bool writes = part == 0;
  switch (scene->kind) {
  case HARP_ALL_REDUCE: return writes ? sum(scene, 0, i) : input(rank, part, i);
  case HARP_REDUCE: return writes && rank == scene->root ? sum(scene, 0, i) : input(rank, part, i);
  case HARP_BROADCAST: return writes ? input(scene->root, 0, i) : input(rank, part, i);
  case HARP_ALL_GATHER: return input(part, 0, i);
  case HARP_REDUCE_SCATTER: return writes ? sum(scene, rank, i) : input(rank, part, i);
  case HARP_ALL_TO_ALL: return input(part, rank, i);
  case HARP_GATHER: return rank == scene->root ? input(part, 0, i) : input(rank, part, i);
  case HARP_SCATTER: return writes ? input(scene->root, rank, i) : input(rank, part, i);
  default: return input(rank, part, i);
  }
}

static int plan_one(struct scene *scene, int rank)
{
  struct harp_call call = {.kind = scene->kind,
                           .dtype = dtypes[scene->type],
                           .reduction = HARP_SUM,
                           .peer = scene->root,
                           .in = scene->in[rank],
                           .out = scene->out[rank]};
  struct plan plan = {.schedule = &scene->world.schedules[rank],
                      .links = &scene->world.links[rank],
                      .rank = rank,
                      .ranks = scene->world.ranks,
                      .call = &call};
  char error[HARP_ERROR];
  return plan_operation(&plan, error);
}

static const char *check_results(const struct scene *scene)
{
  for (int rank = 0; rank < scene->world.ranks; rank++) {
    if (!world_done(&scene->world, rank)) {
      return "a schedule does not end";
    }
    for (int part = 0; part < parts(scene); part++) {
      for (size_t i = 0; i < scene->count; i++) {
        if (get(scene, &scene->out[rank][part], i) != expected(scene, rank, part, i)) {
          return "an element is wrong";
        }
      }
    }
  }
  return NULL;
}

/* Whether a rank has received all messages. The plugin may be done with its sends at once. */
static bool has_received_all(struct scene *scene, int rank)
{
  for (int peer = 0; peer < scene->world.ranks; peer++) {
    if (schedule_receives(&scene->world.schedules[rank], peer)->head != NO_STEP) {
      return false;
    }
  }
  return true;
}

/* A barrier ends on no rank while one has not begun. */
static const char *run_barrier(struct scene *scene)
{
  scene->world.asleep = scene->root;
  const char *wrong = world_run(&scene->world);
  for (int rank = 0; rank < scene->world.ranks && scene->world.ranks > 1 && !wrong; rank++) {
    wrong = has_received_all(scene, rank) ? "a barrier ends early" : NULL;
  }
  scene->world.asleep = -1;
  return wrong ? wrong : world_run(&scene->world);
}

static bool check(int kind, int ranks, unsigned type, size_t count, unsigned seed)
{
  struct scene scene = {.kind = kind, .type = type, .count = count};
  world_init(&scene.world, ranks, seed);
  scene.root = (int)world_draw(&scene.world, (unsigned)ranks);
  make_views(&scene);
  const char *wrong = NULL;
  for (int rank = 0; rank < ranks && !wrong; rank++) {
    wrong = plan_one(&scene, rank) ? "no plan" : NULL;
  }
  if (!wrong) {
    wrong = kind == HARP_BARRIER ? run_barrier(&scene) : world_run(&scene.world);
  }
  if (!wrong) {
    wrong = check_results(&scene);
  }
  free_views(&scene);
  world_free(&scene.world);
  if (wrong) {
    printf("kind %d, %d ranks, type %d, %zu elements: %s\n", kind, ranks, dtypes[type], count,
           wrong);
  }
  return !wrong;
}

/* Movements do not look at the elements, so one type is enough for them. */
static unsigned types_of(int kind)
{
  bool reduces = kind == HARP_ALL_REDUCE || kind == HARP_REDUCE || kind == HARP_REDUCE_SCATTER;
  return reduces ? sizeof sizes / sizeof sizes[0] : 1;
}

/* Many ranks with many views take long, and reach no other code. */
static unsigned counts_of(int kind, int ranks)
{
  return sizeof counts / sizeof counts[0] - (ranks > 4 && kind > HARP_BROADCAST);
}

int main(void)
{
  unsigned checks = 0, wrong = 0;
  for (int kind = 0; kind <= HARP_BARRIER; kind++) {
    for (int ranks = 1; ranks <= WORLD_MOST; ranks += ranks < 5 ? 1 : 2) {
      for (unsigned type = 0; type < types_of(kind); type++) {
        for (unsigned i = 0; i < counts_of(kind, ranks); i++) {
          wrong += !check(kind, ranks, type, counts[i], ++checks);
        }
      }
    }
  }
  printf("%u plans, %u wrong\n", checks, wrong);
  return wrong > 0;
}
