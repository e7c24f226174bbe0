/* SPDX-License-Identifier: Apache-2.0 */
/* A link: frames wait in its queue, leave at its rate, and may suffer faults. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define PS_PER_NS 1000ull

struct sim_frame *frame_new(struct sim *sim, uint32_t length)
{
  struct sim_frame *frame = malloc(sizeof *frame + length);
  if (!frame) {
    abort();
  }
  *frame = (struct sim_frame){.order = sim->order++, .length = length};
  return frame;
}

static struct sim_frame *copy_of(struct sim *sim, const struct sim_frame *frame)
{
  struct sim_frame *copy = frame_new(sim, frame->length);
  memcpy(copy, frame, sizeof *frame + frame->length);
  return copy;
}

uint64_t link_backlog(const struct sim_link *link, uint64_t now)
{
  uint64_t now_ps = now * PS_PER_NS;
  return link->free_ps > now_ps ? (link->free_ps - now_ps) * link->rate_mbps / 8000000 : 0;
}

uint64_t link_has_room_at(const struct sim_link *link, uint64_t now)
{
  uint64_t quarter_ps = link->queue / 4 * 8000000 / link->rate_mbps;
  uint64_t when = link->free_ps > quarter_ps ? (link->free_ps - quarter_ps) / PS_PER_NS + 1 : 0;
  return when > now ? when : now;
}

/* Queues the frame after all others. late: extra delay, ns. */
static void forward(struct sim *sim, struct sim_link *link, struct sim_frame *frame, uint64_t late)
{
  if (link_backlog(link, sim->now) + frame->length > link->queue) {
    sim->counts.queue_dropped++;
    free(frame);
    return;
  }
  uint64_t now_ps = sim->now * PS_PER_NS;
  uint64_t takes_ps = (frame->length + SIM_ETHERNET) * 8000000ull / link->rate_mbps;
  link->free_ps = (link->free_ps > now_ps ? link->free_ps : now_ps) + takes_ps;
  uint64_t arrives = link->free_ps / PS_PER_NS + link->delay_ns;
  if (link->uneven) {
    arrives += random_below(&link->random, takes_ps / PS_PER_NS + 1);
    arrives = arrives > link->latest ? arrives : link->latest;
    link->latest = arrives;
  }
  event_add(sim, arrives + late, EVENT_FRAME, frame);
}

/* A burst of losses begins and ends at frames (Gilbert's model). It also ends after a time,
 * because with few frames it would outlast every backoff. */
static bool in_burst(struct sim *sim, struct sim_link *link)
{
  bool bad = sim->now < link->bad_until;
  if (random_chance(&link->random, bad ? sim->spec.burst_end : sim->spec.burst)) {
    bad = !bad;
    link->bad_until = bad ? sim->now + sim->spec.burst_us * 1000 : 0;
  }
  return bad;
}

static bool lost(struct sim *sim, struct sim_link *link, const struct sim_frame *frame)
{
  const struct sim_spec *spec = &sim->spec;
  if (in_burst(sim, link)) {
    sim->counts.burst_dropped++;
    return true;
  }
  if (random_chance(&link->random, spec->drop)) {
    sim->counts.dropped++;
    return true;
  }
  if (spec->tail > 0 && watch_is_tail(frame) && random_chance(&link->random, spec->tail)) {
    sim->counts.tail_dropped++;
    return true;
  }
  return false;
}

/* Changes one byte, which the checksum always detects. */
static void corrupt(struct sim *sim, struct sim_link *link, struct sim_frame *frame)
{
  device_complete_checksum(frame);
  frame->data[random_below(&link->random, frame->length)] ^= (uint8_t)random_between(&link->random,
                                                                                     1, 255);
  frame->corrupted = true;
  sim->counts.corrupted++;
}

static void pass_with_faults(struct sim *sim, struct sim_link *link, struct sim_frame *frame)
{
  const struct sim_spec *spec = &sim->spec;
  if (lost(sim, link, frame)) {
    free(frame);
    return;
  }
  if (random_chance(&link->random, spec->duplicate)) {
    sim->counts.duplicated++;
    forward(sim, link, copy_of(sim, frame), random_below(&link->random, spec->reorder_ns));
  }
  if (random_chance(&link->random, spec->corrupt)) {
    corrupt(sim, link, frame);
  }
  uint64_t late = 0;
  if (random_chance(&link->random, spec->reorder)) {
    frame->late = true;
    late = random_below(&link->random, spec->reorder_ns);
  }
  forward(sim, link, frame, late);
}

void link_send(struct sim *sim, struct sim_link *link, struct sim_frame *frame)
{
  if (!link->faulty) {
    forward(sim, link, frame, 0);
  } else if (sim->mtu_low && frame->length > sim->spec.path_mtu) {
    sim->counts.mtu_dropped++;
    device_refuse(sim, frame, (uint32_t)sim->spec.path_mtu);
    free(frame);
  } else {
    pass_with_faults(sim, link, frame);
  }
}

static void count_reordering(struct sim *sim, struct sim_link *link, struct sim_frame *frame)
{
  sim->counts.reordered += frame->late && frame->order < link->newest;
  if (frame->order > link->newest) {
    link->newest = frame->order;
  }
}

enum { FROM_NIC, FROM_CORE_UP, FROM_CORE_DOWN, FROM_SWITCH };

void link_arrived(struct sim *sim, struct sim_frame *frame)
{
  struct sim_host *target = &sim->hosts[frame->target];
  uint64_t rack = sim->spec.rack;
  switch (frame->hop) {
  case FROM_NIC:
    if (rack && frame->source / rack != frame->target / rack) {
      frame->hop = FROM_CORE_UP;
      link_send(sim, &sim->core_up[frame->source / rack], frame);
      return;
    }
    break;
  case FROM_CORE_UP:
    frame->hop = FROM_CORE_DOWN;
    link_send(sim, &sim->core_down[frame->target / rack], frame);
    return;
  case FROM_CORE_DOWN: break;
  default:
    count_reordering(sim, &target->down, frame);
    host_receive(target, frame);
    return;
  }
  frame->hop = FROM_SWITCH;
  link_send(sim, &target->down, frame);
}
