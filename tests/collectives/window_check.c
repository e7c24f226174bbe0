/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All_reduce by windows on 1 to 3 hosts with 2 to 8 ranks. Each rank runs two operations, and may
 * begin the second one while others are still in the first. Steps run in a random order.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <stdio.h>
#include <stdlib.h>

#include "harp/collectives/half.h"
#include "tests/collectives/plan_world.h"

enum { OPERATIONS = 2, PERIOD = 11 };

static const int dtypes[] = {HARP_FLOAT32, HARP_BFLOAT16, HARP_UINT8};
static const size_t sizes[] = {4, 2, 1};
static const size_t counts[] = {0, 1, 1000, 20000, 6 * WINDOW_CHUNK / 4 - 100};

struct scene {
  struct world world;
  unsigned type; /* index of dtypes */
  size_t count;
  struct harp_view views[WORLD_MOST][OPERATIONS];
};

/* Repeats after PERIOD elements. Sums of nine such numbers are exact in 8 bits. */
static unsigned input(int rank, int operation, size_t i)
{
  return (unsigned)((i * 3 + (size_t)rank * 7 + (size_t)operation * 5) % PERIOD);
}

static void set(const struct scene *scene, const struct harp_view *view, size_t i, unsigned value)
{
  switch (dtypes[scene->type]) {
  case HARP_FLOAT32: ((float *)view->data)[i] = (float)value; break;
  case HARP_UINT8: ((uint8_t *)view->data)[i] = (uint8_t)value; break;
  default: ((uint16_t *)view->data)[i] = float_to_bfloat16((float)value);
  }
}

static unsigned get(const struct scene *scene, const struct harp_view *view, size_t i)
{
  switch (dtypes[scene->type]) {
  case HARP_FLOAT32: return (unsigned)((float *)view->data)[i];
  case HARP_UINT8: return ((uint8_t *)view->data)[i];
  default: return (unsigned)bfloat16_to_float(((uint16_t *)view->data)[i]);
  }
}

static void plan_one(struct scene *scene, int rank, int operation)
{
  struct world *world = &scene->world;
  struct harp_view *view = &scene->views[rank][operation];
  struct harp_call call = {
      .kind = HARP_ALL_REDUCE, .dtype = dtypes[scene->type], .reduction = HARP_SUM, .out = view};
  struct plan plan = {
      .schedule = operation == 0 ? &world->schedules[rank] : &world->later[rank],
      .links = &world->links[rank],
      .windows = &world->windows[rank],
      .rank = rank,
      .ranks = world->ranks,
      .call = &call,
  };
  char error[HARP_ERROR];
  size_t bytes = scene->count * sizes[scene->type];
  *view = (struct harp_view){calloc(1, bytes + 1), bytes};
  for (size_t i = 0; i < scene->count; i++) {
    set(scene, view, i, input(rank, operation, i));
  }
  if (operation > 0) {
    schedule_init(plan.schedule, world->ranks);
  }
  plan_operation(&plan, error);
}

static bool is_sum(const struct scene *scene, int rank, int operation)
{
  unsigned sums[PERIOD] = {0};
  for (int each = 0; each < scene->world.ranks; each++) {
    for (size_t i = 0; i < PERIOD; i++) {
      sums[i] += input(each, operation, i);
    }
  }
  for (size_t i = 0; i < scene->count; i++) {
    if (get(scene, &scene->views[rank][operation], i) != sums[i % PERIOD]) {
      return false;
    }
  }
  return true;
}

static const char *run(struct scene *scene)
{
  const char *wrong = world_run(&scene->world);
  for (int rank = 0; rank < scene->world.ranks && !wrong; rank++) {
    if (!world_done(&scene->world, rank)) {
      return "a schedule does not end";
    }
    for (int operation = 0; operation < OPERATIONS; operation++) {
      if (!is_sum(scene, rank, operation)) {
        return "an element is wrong";
      }
    }
  }
  return wrong;
}

static bool check(int hosts, int local, unsigned type, size_t count, unsigned seed)
{
  struct scene scene = {.type = type, .count = count};
  world_init(&scene.world, hosts * local, seed);
  world_share(&scene.world, local);
  for (int rank = 0; rank < scene.world.ranks; rank++) {
    for (int operation = 0; operation < OPERATIONS; operation++) {
      plan_one(&scene, rank, operation);
    }
  }
  const char *wrong = run(&scene);
  for (int rank = 0; rank < scene.world.ranks; rank++) {
    for (int operation = 0; operation < OPERATIONS; operation++) {
      free(scene.views[rank][operation].data);
    }
  }
  world_free(&scene.world);
  if (wrong) {
    printf("%d hosts of %d ranks, type %d, %zu elements: %s\n", hosts, local, dtypes[type], count,
           wrong);
  }
  return !wrong;
}

int main(void)
{
  static const int shapes[][2] = {{1, 2}, {1, 3}, {1, 4}, {1, 8}, {2, 2}, {2, 4}, {3, 2}, {4, 2}};
  unsigned checks = 0, wrong = 0;
  for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
    for (unsigned type = 0; type < sizeof sizes / sizeof sizes[0]; type++) {
      for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        wrong += !check(shapes[shape][0], shapes[shape][1], type, counts[i], ++checks);
      }
    }
  }
  printf("%u plans, %u wrong\n", checks, wrong);
  return wrong > 0;
}
