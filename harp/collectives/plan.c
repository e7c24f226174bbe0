/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan.h"

#include <stdio.h>

static const struct {
  void (*plan)(struct plan *plan);
  bool reduces;
} kinds[HARP_KINDS] = {
    [HARP_ALL_REDUCE] = {plan_all_reduce, true},
    [HARP_REDUCE] = {plan_reduce, true},
    [HARP_BROADCAST] = {plan_broadcast, false},
    [HARP_ALL_GATHER] = {plan_all_gather, false},
    [HARP_REDUCE_SCATTER] = {plan_reduce_scatter, true},
    [HARP_ALL_TO_ALL] = {plan_all_to_all, false},
    [HARP_GATHER] = {plan_gather, false},
    [HARP_SCATTER] = {plan_scatter, false},
    [HARP_BARRIER] = {plan_barrier, false},
};

int plan_operation(struct plan *plan, char *error)
{
  const struct harp_call *call = plan->call;
  if (kinds[call->kind].reduces &&
      !reduction_init(&plan->schedule->reduction, call->dtype, call->reduction, plan->ranks)) {
    snprintf(error, HARP_ERROR, "this reduction is not defined for elements of this type");
    return -1;
  }
  kinds[call->kind].plan(plan);
  return 0;
}
