/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/collectives/plan_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/collectives/half.h"

enum { PERIOD = 11 };

static size_t size_of(const struct scene *scene)
{
  switch (scene->dtype) {
  case HARP_UINT8: return 1;
  case HARP_BFLOAT16: return 2;
  case HARP_FLOAT32: return 4;
  default: return 8; /* HARP_INT64 */
  }
}

/* Repeats after PERIOD elements. Sums of nine such numbers are exact in 8 bits. */
static int64_t input(const struct scene *scene, int rank, int part, size_t i)
{
  return (int64_t)((i * 3 + (size_t)(rank * 7 + part * 5 + scene->number * 2)) % PERIOD);
}

static void set(const struct scene *scene, const struct harp_view *view, size_t i, int64_t value)
{
  switch (scene->dtype) {
  case HARP_UINT8: ((uint8_t *)view->data)[i] = (uint8_t)value; break;
  case HARP_INT64: ((int64_t *)view->data)[i] = value; break;
  case HARP_FLOAT32: ((float *)view->data)[i] = (float)value; break;
  default: ((uint16_t *)view->data)[i] = float_to_bfloat16((float)value);
  }
}

static int64_t get(const struct scene *scene, const struct harp_view *view, size_t i)
{
  switch (scene->dtype) {
  case HARP_UINT8: return ((uint8_t *)view->data)[i];
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
  return single ? 1 : scene->ranks;
}

/* Elements that a rank gives to another one. */
static size_t count_between(const struct scene *scene, int from, int to)
{
  bool by_giver = scene->kind == HARP_ALL_GATHER || scene->kind == HARP_GATHER;
  int number = scene->kind == HARP_ALL_TO_ALL ? from + 2 * to : by_giver ? from : to;
  if (scene->ragged == 0 || parts(scene) == 1) {
    return scene->count;
  }
  return scene->count * (size_t)(number % scene->ragged) / (size_t)(scene->ragged - 1);
}

static struct harp_view make_view(const struct scene *scene, size_t count, int rank, int part)
{
  size_t size = size_of(scene), bytes = count * size, filled = bytes;
  struct harp_view view = {malloc(bytes + 1), bytes};
  for (size_t i = 0; i < count && i < PERIOD; i++) {
    set(scene, &view, i, input(scene, rank, part, i));
    filled = (i + 1) * size;
  }
  for (size_t part_bytes; filled < bytes; filled += part_bytes) {
    part_bytes = filled < bytes - filled ? filled : bytes - filled;
    memcpy((uint8_t *)view.data + filled, view.data, part_bytes);
  }
  return view;
}

void scene_make(struct scene *scene)
{
  for (int rank = 0; rank < scene->ranks; rank++) {
    for (int part = 0; part < parts(scene); part++) {
      size_t in = count_between(scene, rank, part), out = count_between(scene, part, rank);
      scene->in[rank][part] = make_view(scene, in, rank, part);
      scene->out[rank][part] = make_view(scene, out, rank, part); /* of those in place */
    }
  }
}

void scene_free(struct scene *scene)
{
  for (int rank = 0; rank < scene->ranks; rank++) {
    for (int part = 0; part < parts(scene); part++) {
      free(scene->in[rank][part].data);
      free(scene->out[rank][part].data);
    }
  }
}

/* Chooses the scene's algorithm for all sizes that can use it. */
static void choose(const struct scene *scene, struct algorithms *algorithms)
{
  algorithms_init(algorithms, scene->ranks);
  for (int size_class = 1; size_class < HARP_SIZE_CLASSES; size_class++) {
    algorithms_choose(algorithms, scene->dtype == HARP_BFLOAT16, size_class, scene->algorithm);
  }
}

bool scene_plan(struct scene *scene, struct world *world, int rank, struct schedule *schedule)
{
  struct harp_call call = {.kind = scene->kind,
                           .dtype = scene->dtype,
                           .reduction = HARP_SUM,
                           .peer = scene->root,
                           .in = scene->in[rank],
                           .out = scene->out[rank]};
  struct algorithms algorithms;
  choose(scene, &algorithms);
  struct plan plan = {.schedule = schedule,
                      .links = &world->links[rank],
                      .algorithms = &algorithms,
                      .windows = world->windows[rank].own ? &world->windows[rank] : NULL,
                      .rank = rank,
                      .ranks = scene->ranks,
                      .call = &call};
  char error[HARP_ERROR];
  return plan_operation(&plan, error) == 0;
}

static int64_t sum(const struct scene *scene, int part, size_t i)
{
  int64_t total = 0;
  for (int rank = 0; rank < scene->ranks; rank++) {
    total += input(scene, rank, part, i);
  }
  return total;
}

/* What element i of out[rank][part] must be. */
static int64_t expected(const struct scene *scene, int rank, int part, size_t i)
{
  bool writes = part == 0, is_root = rank == scene->root;
  int64_t old = input(scene, rank, part, i);
  switch (scene->kind) {
  case HARP_ALL_REDUCE: return writes ? sum(scene, 0, i) : old;
  case HARP_REDUCE: return writes && is_root ? sum(scene, 0, i) : old;
  case HARP_BROADCAST: return writes ? input(scene, scene->root, 0, i) : old;
  case HARP_ALL_GATHER: return input(scene, part, 0, i);
  case HARP_REDUCE_SCATTER: return writes ? sum(scene, rank, i) : old;
  case HARP_ALL_TO_ALL: return input(scene, part, rank, i);
  case HARP_GATHER: return is_root ? input(scene, part, 0, i) : old;
  case HARP_SCATTER: return writes ? input(scene, scene->root, rank, i) : old;
  default: return old;
  }
}

static bool is_right(const struct scene *scene, int rank, int part)
{
  const struct harp_view *view = &scene->out[rank][part];
  size_t size = size_of(scene), period = PERIOD * size;
  for (size_t i = 0; i < view->bytes / size && i < PERIOD; i++) {
    if (get(scene, view, i) != expected(scene, rank, part, i)) {
      return false;
    }
  }
  return view->bytes <= period ||
         memcmp(view->data, (uint8_t *)view->data + period, view->bytes - period) == 0;
}

bool scene_is_right(const struct scene *scene)
{
  for (int rank = 0; rank < scene->ranks; rank++) {
    for (int part = 0; part < parts(scene); part++) {
      if (!is_right(scene, rank, part)) {
        return false;
      }
    }
  }
  return true;
}
