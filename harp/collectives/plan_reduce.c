/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that reduce.
 *
 * All_reduce and reduce of ranks that share memory are in plan_windows.c. The rest is here.
 *
 * Short all_reduce and reduce: recursive doubling (plan_double.c). Long ones: each rank folds its
 * share of the elements from all ranks (reduce-scatter by pairwise exchange), and sends the result
 * to the others or to the root. Slices make the two phases and the computing overlap. Long
 * all_reduce of more than two ranks takes the ring (plan_ring.c), but for the 16-bit floats, and
 * halving (plan_halving.c) if a group has chosen it (algorithms.h). Each element is folded in an
 * order that depends on the algorithm alone, so all ranks get the same bits, and with the fixed
 * rule in each run. Thakur, Rabenseifner and Gropp (2005); Rabenseifner, "Optimization of
 * Collective Reduction Operations" (2004).
 */
#include "harp/collectives/plan_double.h"
#include "harp/collectives/plan_share.h"

#include <stdlib.h>

struct reducing {
  struct plan *plan;
  struct share *shares; /* of each rank */
  size_t most;          /* slices of the largest share */
  int32_t *sent;        /* [rank][slice]: step that sends our part of that rank's share */
  uint8_t *out;         /* where own results go; NULL: to staging */
};

/* The caller sets the shares next. */
static bool begin(struct reducing *reducing, struct plan *plan)
{
  *reducing = (struct reducing){.plan = plan};
  reducing->shares = calloc((size_t)plan->ranks, sizeof *reducing->shares);
  return reducing->shares != NULL;
}

static bool measure_shares(struct reducing *reducing)
{
  for (int rank = 0; rank < reducing->plan->ranks; rank++) {
    size_t slices = reducing->shares[rank].slices;
    reducing->most = slices > reducing->most ? slices : reducing->most;
  }
  reducing->sent = malloc(((size_t)reducing->plan->ranks * reducing->most + 1) * sizeof(int32_t));
  return reducing->sent != NULL;
}

static void end(struct reducing *reducing)
{
  free(reducing->sent);
  free(reducing->shares);
}

static int32_t *sent_step(const struct reducing *reducing, int rank, size_t slice)
{
  return &reducing->sent[(size_t)rank * reducing->most + slice];
}

/* Sends our operands of the other ranks' shares. */
static void send_operands(struct reducing *reducing)
{
  struct plan *plan = reducing->plan;
  for (int distance = 1; distance < plan->ranks; distance++) {
    int to = plan_rank(plan, distance);
    const struct share *share = &reducing->shares[to];
    for (size_t slice = 0; slice < share->slices; slice++) {
      *sent_step(reducing, to, slice) = add_send(plan->schedule, to, share_slice_data(share, slice),
                                                 share_slice_bytes(share, slice), NO_STEP);
    }
  }
}

/* The step that folds slice `slice` of the rank `distance` before us. */
static int32_t *folded(int32_t *steps, const struct share *own, int distance, size_t slice)
{
  return &steps[(size_t)(distance - 1) * own->slices + slice];
}

static int32_t fold_peer(struct reducing *reducing, int32_t *folds, int distance, size_t slice,
                         void *wide)
{
  struct plan *plan = reducing->plan;
  struct schedule *schedule = plan->schedule;
  const struct share *own = &reducing->shares[plan->rank];
  int from = plan_rank(plan, -distance);
  struct link *link = links_get(plan->links, LINK_COLLECTIVE, false, from);
  void *staging = link_staging(link, (int)(slice % LINK_STAGED));
  size_t count = share_slice_count(own, slice);
  int32_t empty = slice < LINK_STAGED ? NO_STEP
                                      : *folded(folds, own, distance, slice - LINK_STAGED);
  int32_t received = add_receive(schedule, from, staging, count * schedule->reduction.size, empty);
  mark_staged(schedule, received);
  return *folded(folds, own, distance, slice) = add_compute(schedule, STEP_FOLD, wide, staging,
                                                            count, received, NO_STEP);
}

/* Folds our share. stored[slice]: the step that stores the result. root: where staged results go.
 */
static bool fold_share(struct reducing *reducing, int32_t *stored, int root)
{
  struct plan *plan = reducing->plan;
  struct schedule *schedule = plan->schedule;
  const struct reduction *reduction = &schedule->reduction;
  const struct share *own = &reducing->shares[plan->rank];
  size_t peers = (size_t)plan->ranks - 1, bytes = (own->slices * peers + 1) * sizeof(int32_t);
  int32_t *folds = malloc(bytes);
  bool direct = reducing->out && reduction_is_plain(reduction);
  if (!folds || (!direct && !schedule_make_wide(schedule, own->slice * reduction->wide_size))) {
    free(folds);
    return false;
  }
  int32_t left[LINK_STAGED] = {NO_STEP, NO_STEP, NO_STEP, NO_STEP};
  for (size_t slice = 0; slice < own->slices; slice++) {
    size_t count = share_slice_count(own, slice), staged = slice % LINK_STAGED;
    void *out = reducing->out ? reducing->out + slice * own->slice * reduction->size
                              : link_staging(links_get(plan->links, LINK_COLLECTIVE, true, root),
                                             (int)staged);
    void *wide = direct ? out : schedule->wide;
    add_compute(schedule, STEP_LOAD, wide, share_slice_data(own, slice), count, NO_STEP, NO_STEP);
    for (int distance = 1; distance < plan->ranks; distance++) {
      fold_peer(reducing, folds, distance, slice, wide);
    }
    stored[slice] = add_compute(schedule, STEP_STORE, out, wide, count, left[staged], NO_STEP);
    if (!reducing->out) {
      left[staged] = add_send(schedule, root, out, count * reduction->size, stored[slice]);
      mark_staged(schedule, left[staged]);
    }
  }
  free(folds);
  return true;
}

/* Sends our results to all, and receives theirs where our operands were sent from. */
static void spread_results(struct reducing *reducing, const int32_t *stored)
{
  struct plan *plan = reducing->plan;
  struct schedule *schedule = plan->schedule;
  const struct share *own = &reducing->shares[plan->rank];
  for (size_t slice = 0; slice < own->slices; slice++) {
    for (int distance = 1; distance < plan->ranks; distance++) {
      add_send(schedule, plan_rank(plan, distance), share_slice_data(own, slice),
               share_slice_bytes(own, slice), stored[slice]);
    }
  }
}

static void receive_results(struct reducing *reducing)
{
  struct plan *plan = reducing->plan;
  for (int distance = 1; distance < plan->ranks; distance++) {
    int from = plan_rank(plan, -distance);
    const struct share *share = &reducing->shares[from];
    for (size_t slice = 0; slice < share->slices; slice++) {
      add_receive(plan->schedule, from, share_slice_data(share, slice),
                  share_slice_bytes(share, slice), *sent_step(reducing, from, slice));
    }
  }
}

enum spread { TO_ALL, TO_ROOT, TO_NOBODY };

/* Reduces the shares; the results go where `spread` says. */
static void reduce_shares(struct reducing *reducing, enum spread spread)
{
  struct plan *plan = reducing->plan;
  const struct share *own = &reducing->shares[plan->rank];
  int32_t *stored = malloc((own->slices + 1) * sizeof *stored);
  bool equipped = stored && measure_shares(reducing);
  if (equipped) {
    send_operands(reducing);
  }
  if (!equipped || !fold_share(reducing, stored, plan->call->peer)) {
    plan->schedule->out_of_memory = true;
  } else if (spread == TO_ALL) {
    spread_results(reducing, stored);
    receive_results(reducing);
  } else if (spread == TO_ROOT && plan->rank == plan->call->peer) {
    receive_results(reducing);
  }
  free(stored);
}

static void reduce_long(struct plan *plan, enum spread spread)
{
  struct reducing reducing;
  if (begin(&reducing, plan)) {
    share_equally(reducing.shares, plan->ranks, &plan->schedule->reduction, plan->call->out);
    if (spread == TO_ALL || plan->rank == plan->call->peer) {
      reducing.out = reducing.shares[plan->rank].data;
    }
    reduce_shares(&reducing, spread);
  } else {
    plan->schedule->out_of_memory = true;
  }
  end(&reducing);
}

/* --- Recursive doubling --- */

static void reduce_short(struct plan *plan, bool keeps)
{
  struct schedule *schedule = plan->schedule;
  const struct reduction *reduction = &schedule->reduction;
  const struct harp_view *view = plan->call->out;
  struct doubling doubling = {.schedule = schedule,
                              .rank = plan->rank,
                              .size = plan->ranks,
                              .count = view->bytes / reduction->size};
  doubling.bytes = doubling.stride = doubling.count * reduction->wide_size;
  if (!schedule_make_wide(schedule, doubling.bytes * doubling_partials(plan->ranks))) {
    return;
  }
  doubling.partials = schedule->wide;
  doubling.ready = add_compute(schedule, STEP_LOAD, doubling.partials, view->data, doubling.count,
                               NO_STEP, NO_STEP);
  doubling_add(&doubling);
  if (keeps) {
    add_compute(schedule, STEP_STORE, view->data, doubling_result(&doubling), doubling.count,
                doubling.ready, NO_STEP);
  }
}

/* --- The operations --- */

static bool is_wide(const struct plan *plan)
{
  return !reduction_is_plain(&plan->schedule->reduction);
}

/* Bytes of the accumulators. */
static size_t wide_bytes(const struct plan *plan)
{
  const struct reduction *reduction = &plan->schedule->reduction;
  return plan->call->out->bytes / reduction->size * reduction->wide_size;
}

void plan_all_reduce(struct plan *plan)
{
  if (plan->windows) {
    plan_windows(plan);
    return;
  }
  switch (algorithms_find(plan->algorithms, is_wide(plan), wide_bytes(plan))) {
  case HARP_DOUBLING: reduce_short(plan, true); break;
  case HARP_PAIRWISE: reduce_long(plan, TO_ALL); break;
  case HARP_HALVING: plan_halving(plan); break;
  case HARP_RING: plan_ring(plan); break;
  }
}

void plan_reduce(struct plan *plan)
{
  if (plan->windows) {
    plan_windows(plan);
  } else if (algorithms_fixed(plan->ranks, is_wide(plan), wide_bytes(plan)) == HARP_DOUBLING) {
    reduce_short(plan, plan->rank == plan->call->peer);
  } else {
    reduce_long(plan, TO_ROOT);
  }
}

void plan_reduce_scatter(struct plan *plan)
{
  struct reducing reducing;
  const struct harp_call *call = plan->call;
  const struct reduction *reduction = &plan->schedule->reduction;
  if (begin(&reducing, plan)) {
    for (int rank = 0; rank < plan->ranks; rank++) {
      reducing.shares[rank] = share_make(reduction, call->in[rank].data,
                                         call->in[rank].bytes / reduction->size);
    }
    reducing.out = call->out->data;
    reduce_shares(&reducing, TO_NOBODY);
  } else {
    plan->schedule->out_of_memory = true;
  }
  end(&reducing);
}
