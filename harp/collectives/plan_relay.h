/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relays: a root's bytes pass over links from one rank to the next ones. Short messages go along a
 * binomial tree, others in slices along a chain. Thakur, Rabenseifner and Gropp (2005).
 *
 * Thread: as planners.
 */
#ifndef HARP_COLLECTIVES_PLAN_RELAY_H
#define HARP_COLLECTIVES_PLAN_RELAY_H

#include "harp/collectives/plan.h"

struct relay {
  struct schedule *schedule;
  const int *members; /* their ranks in the group, or NULL: all ranks of the group */
  int size, root;     /* how many members there are, and which of them is the root */
  int number;         /* ours, counted from the root on */
};

/* Passes a view on. The root sends it after this step. Returns the step after which this rank has
 * it: `after`, or the last receive. */
int32_t relay_add(const struct relay *relay, const struct harp_view *view, int32_t after);

#endif
