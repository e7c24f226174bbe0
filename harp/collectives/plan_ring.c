/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All_reduce on a ring: the ranks pass partial results to their successor, share by share, and then
 * the results. Each link carries 2 (N - 1) / N of the data, and each rank uses one link in each
 * direction, so many ranks do not send to one at once. A slice is folded and passed on while the
 * next one arrives. Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
 * Workstations" (2009).
 *
 * Partial results are rounded by each rank, so the 16-bit floats do not use the ring.
 */
#include <stdlib.h>

#include "harp/collectives/plan_share.h"

struct ring {
  struct plan *plan;
  struct share *shares; /* of each rank */
  size_t most;          /* slices of the largest share */
  int32_t *ready;       /* [share][slice]: step that completes our partial result, or NO_STEP */
  int32_t *sent;        /* the same: step that sends it */
  int32_t folded[LINK_STAGED]; /* the last folds, by their staging */
  size_t received;             /* staged messages */
};

static int32_t *at(const struct ring *ring, int32_t *steps, int share, size_t slice)
{
  return &steps[(size_t)share * ring->most + slice];
}

static void send_share(struct ring *ring, int share)
{
  const struct share *sent = &ring->shares[share];
  for (size_t slice = 0; slice < sent->slices; slice++) {
    *at(ring, ring->sent, share, slice) =
        add_send(ring->plan->schedule, plan_rank(ring->plan, 1), share_slice_data(sent, slice),
                 share_slice_bytes(sent, slice), *at(ring, ring->ready, share, slice));
  }
}

static void fold_share(struct ring *ring, int share)
{
  struct schedule *schedule = ring->plan->schedule;
  const struct share *own = &ring->shares[share];
  int from = plan_rank(ring->plan, -1);
  struct link *link = links_get(ring->plan->links, LINK_COLLECTIVE, false, from);
  for (size_t slice = 0; slice < own->slices; slice++) {
    size_t staged = ring->received++ % LINK_STAGED;
    void *staging = link_staging(link, (int)staged);
    int32_t received = add_receive(schedule, from, staging, share_slice_bytes(own, slice),
                                   ring->folded[staged]);
    mark_staged(schedule, received);
    ring->folded[staged] = *at(ring, ring->ready, share, slice) =
        add_compute(schedule, STEP_FOLD, share_slice_data(own, slice), staging,
                    share_slice_count(own, slice), received, NO_STEP);
  }
}

static void store_share(struct ring *ring, int share)
{
  const struct share *own = &ring->shares[share];
  for (size_t slice = 0; slice < own->slices; slice++) {
    uint8_t *data = share_slice_data(own, slice);
    int32_t *ready = at(ring, ring->ready, share, slice);
    *ready = add_compute(ring->plan->schedule, STEP_STORE, data, data,
                         share_slice_count(own, slice), *ready, NO_STEP);
  }
}

/* A result replaces our partial result once that is sent. */
static void receive_share(struct ring *ring, int share)
{
  const struct share *result = &ring->shares[share];
  for (size_t slice = 0; slice < result->slices; slice++) {
    *at(ring, ring->ready, share, slice) = add_receive(
        ring->plan->schedule, plan_rank(ring->plan, -1), share_slice_data(result, slice),
        share_slice_bytes(result, slice), *at(ring, ring->sent, share, slice));
  }
}

static void go_round(struct ring *ring)
{
  const struct plan *plan = ring->plan;
  for (int round = 0; round < plan->ranks - 1; round++) {
    send_share(ring, plan_rank(plan, -round));
    fold_share(ring, plan_rank(plan, -round - 1));
  }
  store_share(ring, plan_rank(plan, 1));
  for (int round = 0; round < plan->ranks - 1; round++) {
    send_share(ring, plan_rank(plan, 1 - round));
    receive_share(ring, plan_rank(plan, -round));
  }
}

void plan_ring(struct plan *plan)
{
  struct ring ring = {.plan = plan};
  size_t ranks = (size_t)plan->ranks;
  ring.shares = calloc(ranks, sizeof *ring.shares);
  if (ring.shares) {
    share_equally(ring.shares, plan->ranks, &plan->schedule->reduction, plan->call->out);
    ring.most = ring.shares[0].slices;
  }
  size_t steps = ranks * ring.most + 1;
  ring.ready = malloc(steps * sizeof *ring.ready);
  ring.sent = malloc(steps * sizeof *ring.sent);
  if (ring.shares && ring.ready && ring.sent) {
    for (size_t i = 0; i < steps; i++) {
      ring.ready[i] = ring.sent[i] = NO_STEP;
    }
    for (int i = 0; i < LINK_STAGED; i++) {
      ring.folded[i] = NO_STEP;
    }
    go_round(&ring);
  } else {
    plan->schedule->out_of_memory = true;
  }
  free(ring.shares);
  free(ring.ready);
  free(ring.sent);
}
