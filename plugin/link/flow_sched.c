/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next chunk goes to the flow that would deliver it first. Each flow tracks the bytes that it
 * holds and the recent cost of its bytes in time. The congestion window alone is not enough: a path
 * with a long queue lets a slow flow's window grow until that flow holds all posted data and the
 * other flows idle.
 */
#include "plugin/link/link.h"

enum {
  COST_SHIFT = 12,      /* costs are ns per 4 KiB */
  COST_FIRST = 4000,    /* about 1 GB/s, before the first sample */
  SAMPLE_LEAST = 16384, /* bytes; a smaller sample measures only the round trip */
  TIE = 50000,          /* ns; a smaller difference does not count */
  FORGIVE = 8,          /* an idle flow's cost falls by 1/8 per tick */
};
#define COST_NONE UINT32_MAX   /* the flow has no connection */
#define SAMPLE_TIME 1000000ull /* ns between the samples of a busy flow */

static uint64_t load(const _Atomic(uint64_t) *word)
{
  return atomic_load_explicit(word, memory_order_relaxed);
}

static void store(_Atomic(uint64_t) *word, uint64_t value)
{
  atomic_store_explicit(word, value, memory_order_relaxed); /* only the flow's instance writes it */
}

/* Estimated time until a flow has delivered the bytes that it holds and these bytes, ns. */
static uint64_t through_in(const struct link_flow *flow, uint32_t bytes)
{
  uint64_t cost = load(&flow->cost);
  return cost == COST_NONE ? UINT64_MAX : ((load(&flow->held) + bytes) * cost) >> COST_SHIFT;
}

static void hand_over(struct link_flow *flow, struct link_flow *to)
{
  struct link_instance *part = to->part;
  if (part == flow->part && to->tcp) { /* a flow that moves here has no connection yet */
    harp_flow_ready(to->tcp);
  } else {
    harp_instance_post(part->instance, &part->post);
  }
}

bool flow_takes(struct link_flow *flow, uint32_t bytes)
{
  struct net_link *link = flow->link;
  if (link->flow_count == 1 || atomic_load(&link->closing)) {
    return true; /* no other flow, or the others may be freed now */
  }
  struct link_flow *best = flow;
  uint64_t least = through_in(flow, bytes);
  for (unsigned i = 0; i < link->flow_count; i++) {
    struct link_flow *other = link->flows[i];
    uint64_t time = other ? through_in(other, bytes) : UINT64_MAX;
    if (time < least && least - time > TIE) {
      best = other;
      least = time;
    }
  }
  if (best != flow) {
    hand_over(flow, best);
  }
  return best == flow;
}

void flow_holds_more(struct link_flow *flow, uint32_t bytes)
{
  uint64_t held = load(&flow->held);
  if (held == 0) {
    flow->sample_since = harp_instance_now(flow->instance);
    flow->sample_bytes = 0;
  }
  store(&flow->held, held + bytes);
}

/* A higher sample counts more than a lower one: data on a slow flow delays the whole message. */
static uint64_t blend(uint64_t cost, uint64_t sample)
{
  cost = sample > cost ? (cost + sample) / 2 : cost - (cost - sample) / 4;
  return cost < COST_NONE ? cost : COST_NONE - 1;
}

/* An ACK that ends with a shared one may come late, and tells nothing about the path. */
void flow_holds_less(struct link_flow *flow, uint32_t bytes, bool waited)
{
  uint64_t held = load(&flow->held) - bytes;
  uint64_t now = harp_instance_now(flow->instance);
  uint64_t time = now - flow->sample_since;
  store(&flow->held, held);
  flow->sample_bytes += bytes;
  bool enough = flow->sample_bytes >= SAMPLE_LEAST && (time >= SAMPLE_TIME || held == 0);
  bool sampled = enough && time > 0 && !waited;
  if (sampled) {
    uint64_t sample = (time << COST_SHIFT) / flow->sample_bytes;
    store(&flow->cost, blend(load(&flow->cost), sample));
  }
  if (sampled || waited) {
    flow->sample_since = now;
    flow->sample_bytes = 0;
  }
}

/* The lowest cost of any flow of the link. */
static uint64_t least_cost(const struct link_flow *flow)
{
  const struct net_link *link = flow->link;
  uint64_t least = COST_NONE;
  for (unsigned i = 0; i < link->flow_count && !atomic_load(&link->closing); i++) {
    const struct link_flow *other = link->flows[i];
    uint64_t cost = other ? load(&other->cost) : COST_NONE;
    least = cost < least ? cost : least;
  }
  return least;
}

void flow_sched_begin(struct link_flow *flow)
{
  uint64_t least = least_cost(flow);
  store(&flow->cost, least == COST_NONE ? COST_FIRST : least);
  flow->sample_since = harp_instance_now(flow->instance);
  flow->sample_bytes = 0;
}

void flow_sched_end(struct link_flow *flow) { store(&flow->cost, COST_NONE); }

void flow_sched_tick(struct link_flow *flow)
{
  if (load(&flow->held) > 0 || load(&flow->cost) == COST_NONE) {
    return;
  }
  /* An idle flow gets cheaper with each tick, so that it is tried again: its path may have
   * recovered. */
  uint64_t cost = load(&flow->cost), least = least_cost(flow);
  cost -= cost / FORGIVE;
  store(&flow->cost, cost > least ? cost : least);
  harp_flow_ready(flow->tcp);
}
