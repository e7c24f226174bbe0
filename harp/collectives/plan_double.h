/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive doubling: in each round a rank exchanges its whole partial result with another one, and
 * folds what it gets into its own. Partial results are as wide as the accumulator. Thakur,
 * Rabenseifner and Gropp (2005).
 *
 * Thread: as planners.
 */
#ifndef HARP_COLLECTIVES_PLAN_DOUBLE_H
#define HARP_COLLECTIVES_PLAN_DOUBLE_H

#include "harp/collectives/schedule.h"

enum { DOUBLING_MOST = 34 }; /* partial results of as many ranks as an int counts */

struct doubling {
  struct schedule *schedule;
  const int *members;  /* their ranks in the group, or NULL: all ranks of the group */
  int rank, size;      /* our number among the members, and how many there are */
  size_t count, bytes; /* elements, and wide bytes */
  uint8_t *partials;   /* memory; the first one holds our operands */
  size_t stride;       /* bytes from one partial result to the next */
  int partial;         /* number of our current result */
  int32_t ready;       /* step that completes it */
  /* Memory that is used again: */
  int32_t *sent;    /* of each partial result, the last step that sends it, or NULL */
  int32_t released; /* step after which nobody computes with the old ones, or NO_STEP */
};

/* Partial results that the memory must hold. */
size_t doubling_partials(int size);

/* Adds all rounds. `ready` is then the step that completes the result. */
void doubling_add(struct doubling *doubling);

static inline uint8_t *doubling_result(const struct doubling *doubling)
{
  return doubling->partials + (size_t)doubling->partial * doubling->stride;
}

#endif
