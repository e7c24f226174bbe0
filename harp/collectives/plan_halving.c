/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All_reduce by recursive halving and doubling, on a power of two of ranks. In each round a rank
 * sends the half of its block that the other rank keeps, and folds what it gets into its own half.
 * It then holds its share of the result, and the same rounds backwards gather all shares. A rank
 * sends as many bytes as by pairwise exchange, in 2 log N messages instead of 2 (N - 1), but in 2
 * log N rounds instead of two. Thakur, Rabenseifner and Gropp (2005).
 *
 * Partial results are rounded by each rank, so the 16-bit floats do not use it.
 */
#include <stdlib.h>

#include "harp/collectives/plan_share.h"

enum { ROUNDS_MOST = 31 }; /* of as many ranks as an int counts */

struct halving {
  struct plan *plan;
  struct share *shares; /* of each rank */
  uint8_t *staging;     /* for the next half that arrives */
  /* Of each round, the step that sends a half. The result may replace it then. */
  int32_t sent[ROUNDS_MOST];
  int32_t ready; /* step that completes our block */
};

/* The half of a block of `2 * half` shares that the rank keeps. */
static struct harp_view half_of(const struct halving *halving, int rank, int half)
{
  const struct share *first = &halving->shares[rank & ~(half - 1)], *last = first + half - 1;
  size_t before = (size_t)(last->data - first->data);
  return (struct harp_view){.data = first->data, .bytes = before + last->count * last->size};
}

static void exchange_half(struct halving *halving, int round, int half)
{
  struct schedule *schedule = halving->plan->schedule;
  int rank = halving->plan->rank, peer = rank ^ half;
  struct harp_view own = half_of(halving, rank, half), other = half_of(halving, peer, half);
  halving->sent[round] = add_send(schedule, peer, other.data, other.bytes, halving->ready);
  int32_t received = add_receive(schedule, peer, halving->staging, own.bytes, NO_STEP);
  halving->ready = add_compute(schedule, STEP_FOLD, own.data, halving->staging,
                               own.bytes / schedule->reduction.size, received, NO_STEP);
  halving->staging += own.bytes;
}

static void gather_half(struct halving *halving, int round, int half)
{
  struct schedule *schedule = halving->plan->schedule;
  int rank = halving->plan->rank, peer = rank ^ half;
  struct harp_view own = half_of(halving, rank, half), other = half_of(halving, peer, half);
  add_send(schedule, peer, own.data, own.bytes, halving->ready);
  int32_t received = add_receive(schedule, peer, other.data, other.bytes, halving->sent[round]);
  /* A fold of nothing. Computing keeps its order, so the next send waits for all halves so far. */
  halving->ready = add_compute(schedule, STEP_FOLD, other.data, other.data, 0, received, NO_STEP);
}

static void go_rounds(struct halving *halving)
{
  const struct plan *plan = halving->plan;
  int round = 0;
  for (int half = plan->ranks / 2; half > 0; half /= 2) {
    exchange_half(halving, round++, half);
  }
  struct harp_view own = half_of(halving, plan->rank, 1);
  halving->ready = add_compute(plan->schedule, STEP_STORE, own.data, own.data,
                               own.bytes / plan->schedule->reduction.size, halving->ready, NO_STEP);
  for (int half = 1; half < plan->ranks; half *= 2) {
    gather_half(halving, --round, half);
  }
}

void plan_halving(struct plan *plan)
{
  struct schedule *schedule = plan->schedule;
  const struct harp_view *view = plan->call->out;
  struct halving halving = {.plan = plan, .ready = NO_STEP};
  halving.shares = calloc((size_t)plan->ranks, sizeof *halving.shares);
  if (!halving.shares) {
    schedule->out_of_memory = true;
    return;
  }
  share_equally(halving.shares, plan->ranks, &schedule->reduction, view);
  /* The halves that arrive have N - 1 shares. The first share is the largest, and rounded up. */
  size_t share = halving.shares[0].count * halving.shares[0].size;
  if (schedule_make_wide(schedule, (size_t)plan->ranks * share)) {
    halving.staging = schedule->wide;
    go_rounds(&halving);
  }
  free(halving.shares);
}
