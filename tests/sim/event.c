/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of events: a binary heap by time, then by order of creation. */
#include <stdlib.h>

#include "tests/sim/sim.h"

static bool before(const struct sim_event *a, const struct sim_event *b)
{
  return a->when < b->when || (a->when == b->when && a->order < b->order);
}

void event_add(struct sim *sim, uint64_t when, enum sim_event_kind kind, void *what)
{
  if (sim->event_count == sim->event_size) {
    sim->event_size = sim->event_size ? 2 * sim->event_size : 1024;
    sim->events = realloc(sim->events, sim->event_size * sizeof *sim->events);
    if (!sim->events) {
      abort();
    }
  }
  struct sim_event event = {when, sim->order++, what, kind};
  uint32_t index = sim->event_count++;
  while (index > 0 && before(&event, &sim->events[(index - 1) / 2])) {
    sim->events[index] = sim->events[(index - 1) / 2];
    index = (index - 1) / 2;
  }
  sim->events[index] = event;
}

bool event_take(struct sim *sim, struct sim_event *event)
{
  if (sim->event_count == 0) {
    return false;
  }
  *event = sim->events[0];
  struct sim_event last = sim->events[--sim->event_count];
  uint32_t index = 0;
  for (;;) {
    uint32_t child = 2 * index + 1;
    if (child >= sim->event_count) {
      break;
    }
    if (child + 1 < sim->event_count && before(&sim->events[child + 1], &sim->events[child])) {
      child++;
    }
    if (!before(&sim->events[child], &last)) {
      break;
    }
    sim->events[index] = sim->events[child];
    index = child;
  }
  if (sim->event_count) {
    sim->events[index] = last;
  }
  return true;
}
