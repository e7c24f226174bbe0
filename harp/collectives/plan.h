/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planners: each writes the schedule of one rank for one operation. The schedules of all ranks
 * match if their calls do.
 *
 * Thread: any, one for a schedule, and one at a time for the windows. Errors: -1 with a sentence
 * for the caller's mistakes, 0 otherwise. A lack of memory shows in schedule->out_of_memory.
 */
#ifndef HARP_COLLECTIVES_PLAN_H
#define HARP_COLLECTIVES_PLAN_H

#include "harp/collectives/algorithms.h"
#include "harp/collectives/collectives.h"
#include "harp/collectives/links.h"
#include "harp/collectives/schedule.h"
#include "harp/collectives/windows.h"

struct plan {
  struct schedule *schedule;
  struct links *links;     /* for staging */
  struct windows *windows; /* NULL: the ranks use links alone */
  const struct algorithms *algorithms;
  int rank, ranks;
  const struct harp_call *call;
  bool fills; /* the operation uses the buffers of the own window */
};

/* Plans the operation of plan->call, which is no send or receive. */
int plan_operation(struct plan *plan, char *error);

/* One function for each kind of operation. Reductions need schedule->reduction. */
void plan_all_reduce(struct plan *plan);
void plan_reduce(struct plan *plan);
void plan_reduce_scatter(struct plan *plan);
void plan_broadcast(struct plan *plan);
void plan_all_gather(struct plan *plan);
void plan_all_to_all(struct plan *plan);
void plan_gather(struct plan *plan);
void plan_scatter(struct plan *plan);
void plan_barrier(struct plan *plan);

/* All_reduce of long tensors on many ranks; see algorithms.h. */
void plan_ring(struct plan *plan);
void plan_halving(struct plan *plan);

/* By windows. plan_windows: all_reduce and reduce. plan_exchange: the others; on several hosts,
 * only broadcast, all_gather and reduce_scatter. */
void plan_windows(struct plan *plan);
void plan_exchange(struct plan *plan);

/* Begins an operation by windows: waits until its memory for short tensors is free, and tells the
 * other ranks of the host the call. bytes: that this rank gives to each of them; the caller may
 * still change call->gives and call->sizes. NULL: no memory. */
struct window_call *plan_call(struct plan *plan, size_t bytes);

/* Precedes the first chunk in the buffers of the own window: waits until they are free. */
void plan_fill(struct plan *plan);

/* The rank `distance` places after (or, negative, before) this one. */
static inline int plan_rank(const struct plan *plan, int distance)
{
  return ((plan->rank + distance) % plan->ranks + plan->ranks) % plan->ranks;
}

/* How a message of many bytes is cut for pipelining, into slices of at most `most` bytes. Both ends
 * compute the same. */
static inline size_t plan_slice(size_t bytes, size_t most)
{
  size_t quarter = (bytes / 4 + 63) & ~(size_t)63;
  if (quarter < 2 * LINK_SHORT) {
    return 2 * LINK_SHORT;
  }
  return quarter < most ? quarter : most;
}

#endif
