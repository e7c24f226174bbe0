/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of a scenario: their hosts and start times. */
#include <stdlib.h>

#include "tests/sim/sim.h"

enum pattern { PAIRS, INCAST, RING };

static uint64_t size_of(struct sim *sim)
{
  const struct sim_spec *spec = &sim->spec;
  if (spec->pattern == RING) {
    return spec->steps * spec->bytes;
  }
  if (spec->bytes == 0 && spec->duration_us) {
    return SIM_NEVER;
  }
  if (!spec->random_bytes || spec->bytes == 0) {
    return spec->bytes;
  }
  return random_scale(&sim->random, 1, spec->bytes) - random_below(&sim->random, 2);
}

static void choose_sizes(struct sim *sim)
{
  for (uint64_t i = 0; i < sim->flow_count; i++) {
    struct sim_flow *flow = &sim->flows[i];
    flow->sim = sim;
    flow->id = i;
    for (int side = 0; side < 2; side++) {
      flow->end[side].size = side == 0 || sim->spec.duplex ? size_of(sim) : 0;
      flow->end[side].allowed = sim->spec.pattern == RING ? sim->spec.bytes : SIM_NEVER;
    }
  }
}

/* Ranks are assigned to hosts at random, so most neighbours are in other racks. */
static void make_ring(struct sim *sim)
{
  uint64_t count = sim->flow_count;
  for (uint64_t i = 0; i < count; i++) {
    sim->flows[i].next = &sim->flows[(i + 1) % count];
  }
  sim->steps = sim_allocate(count * sim->spec.steps, sizeof *sim->steps);
}

static void start_next(struct sim *sim, uint64_t when)
{
  if (sim->next_flow < sim->flow_count) {
    event_add(sim, when, EVENT_START, &sim->flows[sim->next_flow++]);
  }
}

void pattern_begin(struct sim *sim)
{
  const struct sim_spec *spec = &sim->spec;
  bool ring = spec->pattern == RING;
  sim->flow_count = ring ? spec->hosts : spec->connections;
  sim->flows = sim_allocate(sim->flow_count, sizeof *sim->flows);
  choose_sizes(sim);
  if (ring) {
    make_ring(sim);
  }
  uint64_t together = ring ? sim->flow_count : spec->parallel;
  for (uint64_t i = 0; i < together; i++) {
    start_next(sim, sim->now + i * spec->stagger_us * 1000);
  }
}

/* Returns the rank's host: a shuffle that depends only on the seed. */
static uint16_t host_of_rank(const struct sim *sim, uint64_t rank)
{
  uint16_t order[256];
  uint64_t hosts = sim->spec.hosts;
  struct sim_random random = random_stream(sim->spec.seed, 7);
  for (uint64_t i = 0; i < hosts; i++) {
    uint64_t j = random_below(&random, i + 1);
    order[i] = order[j];
    order[j] = (uint16_t)i;
  }
  return order[rank % hosts];
}

void pattern_start(struct sim_flow *flow)
{
  struct sim *sim = flow->sim;
  uint64_t hosts = sim->spec.hosts;
  switch (sim->spec.pattern) {
  case PAIRS: {
    uint16_t client = (uint16_t)(flow->id % (hosts / 2) * 2);
    traffic_start(flow, client, client + 1);
    break;
  }
  case INCAST: traffic_start(flow, (uint16_t)(1 + flow->id % (hosts - 1)), 0); break;
  default: traffic_start(flow, host_of_rank(sim, flow->id), host_of_rank(sim, flow->id + 1)); break;
  }
}

void pattern_done(struct sim_flow *flow)
{
  struct sim *sim = flow->sim;
  sim->done++;
  start_next(sim, sim->now + sim->spec.stagger_us * 1000);
}

/* A step of a rank ends when it has received all of its neighbour's data. Then it may send its
 * own next step. */
static void step_done(struct sim_flow *flow)
{
  struct sim *sim = flow->sim;
  if (flow->step_began) { /* the first step opens connections and windows */
    sim->steps[sim->step_count++] = sim->now - flow->step_began;
  }
  flow->step_began = sim->now;
  struct sim_end *onward = &flow->next->end[0];
  onward->allowed += sim->spec.bytes;
  if (onward->tcp && onward->established) {
    harp_flow_ready(onward->tcp);
  }
}

void pattern_delivered(struct sim_end *end, uint64_t before)
{
  struct sim_flow *flow = end->flow;
  if (flow->sim->spec.pattern != RING) {
    return;
  }
  uint64_t bytes = flow->sim->spec.bytes;
  for (uint64_t step = before / bytes; step < end->received / bytes; step++) {
    step_done(flow);
  }
}
