/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that move bytes and compute nothing.
 *
 * Broadcast: plan_relay.c. The others send each byte straight to its reader, and begin with
 * different peers (pairwise exchange). Thakur, Rabenseifner and Gropp, "Optimization of Collective
 * Communication Operations in MPICH" (2005). Barrier: dissemination, Hensgen, Finkel and Manber
 * (1988).
 */
#include "harp/collectives/plan_relay.h"

void plan_broadcast(struct plan *plan)
{
  struct relay relay = {
      .schedule = plan->schedule,
      .size = plan->ranks,
      .root = plan->call->peer,
      .number = plan_rank(plan, -plan->call->peer),
  };
  relay_add(&relay, plan->call->out, NO_STEP);
}

static void copy_own(struct plan *plan, const struct harp_view *to, const struct harp_view *from)
{
  if (from->bytes) {
    add_copy(plan->schedule, to->data, from->data, from->bytes);
  }
}

static void send_view(struct plan *plan, int peer, const struct harp_view *view)
{
  add_send(plan->schedule, peer, view->data, view->bytes, NO_STEP);
}

static void receive_view(struct plan *plan, int peer, const struct harp_view *view)
{
  add_receive(plan->schedule, peer, view->data, view->bytes, NO_STEP);
}

void plan_all_gather(struct plan *plan)
{
  const struct harp_call *call = plan->call;
  for (int distance = 1; distance < plan->ranks; distance++) {
    int to = plan_rank(plan, distance), from = plan_rank(plan, -distance);
    send_view(plan, to, call->in);
    receive_view(plan, from, &call->out[from]);
  }
  copy_own(plan, &call->out[plan->rank], call->in);
}

void plan_all_to_all(struct plan *plan)
{
  const struct harp_call *call = plan->call;
  for (int distance = 1; distance < plan->ranks; distance++) {
    int to = plan_rank(plan, distance), from = plan_rank(plan, -distance);
    send_view(plan, to, &call->in[to]);
    receive_view(plan, from, &call->out[from]);
  }
  copy_own(plan, &call->out[plan->rank], &call->in[plan->rank]);
}

void plan_gather(struct plan *plan)
{
  const struct harp_call *call = plan->call;
  if (plan->rank != call->peer) {
    send_view(plan, call->peer, call->in);
    return;
  }
  for (int rank = 0; rank < plan->ranks; rank++) {
    if (rank != plan->rank) {
      receive_view(plan, rank, &call->out[rank]);
    }
  }
  copy_own(plan, &call->out[plan->rank], call->in);
}

void plan_scatter(struct plan *plan)
{
  const struct harp_call *call = plan->call;
  if (plan->rank != call->peer) {
    receive_view(plan, call->peer, call->out);
    return;
  }
  for (int rank = 0; rank < plan->ranks; rank++) {
    if (rank != plan->rank) {
      send_view(plan, rank, &call->in[rank]);
    }
  }
  copy_own(plan, call->out, &call->in[plan->rank]);
}

void plan_barrier(struct plan *plan)
{
  int32_t heard = NO_STEP;
  if (!schedule_make_wide(plan->schedule, 1)) {
    return;
  }
  uint8_t *byte = plan->schedule->wide;
  *byte = 0;
  for (int distance = 1; distance < plan->ranks; distance <<= 1) {
    add_send(plan->schedule, plan_rank(plan, distance), byte, 1, heard);
    heard = add_receive(plan->schedule, plan_rank(plan, -distance), byte, 1, heard);
  }
}
