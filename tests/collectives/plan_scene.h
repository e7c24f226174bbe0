/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of one operation on all ranks of a world (plan_world.h), and what they must be at its
 * end.
 */
#ifndef HARP_TESTS_COLLECTIVES_PLAN_SCENE_H
#define HARP_TESTS_COLLECTIVES_PLAN_SCENE_H

#include "tests/collectives/plan_world.h"

enum { FIXED_RULE = -1 };

struct scene {
  int kind, dtype, ranks, root;
  size_t count; /* elements of a view */
  /* 0: all views have `count` elements. Else views of rank r have (r % ragged) / (ragged - 1) of
   * them, if the kind allows it. */
  int ragged;
  int number;    /* of the operation: others have other elements */
  int algorithm; /* of all_reduce, where it can run, or FIXED_RULE */
  struct harp_view in[WORLD_MOST][WORLD_MOST], out[WORLD_MOST][WORLD_MOST];
};

/* Makes the tensors. The other fields are set. */
void scene_make(struct scene *scene);
void scene_free(struct scene *scene);

/* Plans the operation for one rank. false: no plan. */
bool scene_plan(struct scene *scene, struct world *world, int rank, struct schedule *schedule);

/* Whether the tensors of all ranks have the right elements. */
bool scene_is_right(const struct scene *scene);

#endif
