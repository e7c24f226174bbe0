/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
  void (*plan)(struct plan *plan);
  bool reduces, rooted;
} kinds[HARP_KINDS] = {
    [HARP_ALL_REDUCE] = {plan_all_reduce, true, false},
    [HARP_REDUCE] = {plan_reduce, true, true},
    [HARP_BROADCAST] = {plan_broadcast, false, true},
    [HARP_ALL_GATHER] = {plan_all_gather, false, false},
    [HARP_REDUCE_SCATTER] = {plan_reduce_scatter, true, false},
    [HARP_ALL_TO_ALL] = {plan_all_to_all, false, false},
    [HARP_GATHER] = {plan_gather, false, true},
    [HARP_SCATTER] = {plan_scatter, false, true},
    [HARP_BARRIER] = {plan_barrier, false, false},
};

/* Takes down what the next operations must wait for. */
static void keep_plan(const struct plan *plan)
{
  const struct schedule *schedule = plan->schedule;
  struct window_plans *plans = &plan->windows->plans;
  plans->signals = schedule->first + schedule->signals;
  plans->ends[schedule->number] = plans->signals;
  if (plan->fills) {
    plans->filled = plans->signals;
  }
  plans->operations++;
}

/* Whether plan_exchange plans the operation of ranks that have windows. */
static bool exchanges(const struct plan *plan)
{
  switch (plan->call->kind) {
  case HARP_ALL_REDUCE:
  case HARP_REDUCE: return false;
  case HARP_BROADCAST:
  case HARP_ALL_GATHER:
  case HARP_REDUCE_SCATTER: return true;
  default: return plan->windows->hosts == 1;
  }
}

int plan_operation(struct plan *plan, char *error)
{
  const struct harp_call *call = plan->call;
  if (kinds[call->kind].reduces &&
      !reduction_init(&plan->schedule->reduction, call->dtype, call->reduction, plan->ranks)) {
    snprintf(error, HARP_ERROR, "this reduction is not defined for elements of this type");
    return -1;
  }
  if (plan->windows && exchanges(plan)) {
    plan_exchange(plan);
  } else {
    kinds[call->kind].plan(plan);
  }
  if (plan->schedule->windows && !plan->schedule->out_of_memory) {
    keep_plan(plan);
  }
  return 0;
}

struct window_call *plan_call(struct plan *plan, size_t bytes)
{
  const struct harp_call *call = plan->call;
  struct windows *windows = plan->windows;
  struct schedule *schedule = plan->schedule;
  bool reduces = kinds[call->kind].reduces;
  struct window_call *told = malloc(sizeof *told);
  schedule->windows = windows;
  schedule->first = windows->plans.signals;
  schedule->number = windows->plans.operations % WINDOW_OPERATIONS;
  schedule->call = told;
  if (!told) {
    schedule->out_of_memory = true;
    return NULL;
  }
  told->kind = call->kind;
  told->dtype = reduces ? call->dtype : 0;
  told->reduction = reduces ? call->reduction : 0;
  told->sizes = 0;
  told->root = kinds[call->kind].rooted ? call->peer : 0;
  for (int local_rank = 0; local_rank < windows->count; local_rank++) {
    told->gives[local_rank] = bytes;
  }
  add_await_others(schedule, windows->plans.ends[schedule->number] - schedule->first);
  add_copy(schedule, &windows->own->calls[schedule->number], told,
           offsetof(struct window_call, gives) + (size_t)windows->count * sizeof(uint64_t));
  return told;
}

void plan_fill(struct plan *plan)
{
  struct schedule *schedule = plan->schedule;
  const struct window_plans *plans = &plan->windows->plans;
  uint32_t ahead = schedule->first - plans->filled;
  if (!plan->fills && ahead <= schedule->first - plans->ends[schedule->number]) {
    add_await_others(schedule, -ahead);
  }
  plan->fills = true;
}
