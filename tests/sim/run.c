/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a scenario, from the first event to the last. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

enum {
  QUIET_FRAMES = 20000,    /* without progress: a livelock */
  QUIET_FRAMES_EACH = 200, /* additional frames per concurrent connection */
};
#define LONGEST (100000 * SIM_SECOND)

void sim_violation(struct sim *sim, const char *format, ...)
{
  if (sim->failed) {
    return;
  }
  int used = snprintf(sim->message, sizeof sim->message, "at %" PRIu64 " ns: ", sim->now);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sim->message + used, sizeof sim->message - (size_t)used, format, arguments);
  va_end(arguments);
  sim->failed = true;
}

void *sim_allocate(size_t count, size_t size)
{
  void *memory = calloc(count ? count : 1, size);
  if (!memory) {
    fprintf(stderr, "sim: out of memory for %zu objects of %zu bytes\n", count, size);
    abort();
  }
  return memory;
}

static void make_core(struct sim *sim)
{
  const struct sim_spec *spec = &sim->spec;
  uint64_t racks = spec->rack ? (spec->hosts + spec->rack - 1) / spec->rack : 0;
  sim->core_up = sim_allocate(racks, sizeof *sim->core_up);
  sim->core_down = sim_allocate(racks, sizeof *sim->core_down);
  for (uint64_t i = 0; i < racks; i++) {
    sim->core_up[i] = sim->core_down[i] = (struct sim_link){.rate_mbps = spec->core_mbps,
                                                            .queue = spec->queue};
  }
}

static void begin(struct sim *sim, const struct sim_spec *spec, FILE *capture)
{
  memset(sim, 0, sizeof *sim);
  sim->spec = *spec;
  sim->capture = capture;
  sim->random = random_stream(spec->seed, 0);
  sim->hosts = sim_allocate(spec->hosts, sizeof *sim->hosts);
  for (uint64_t i = 0; i < spec->hosts; i++) {
    host_create(sim, (uint16_t)i);
  }
  make_core(sim);
  capture_begin(sim);
  if (spec->path_mtu) {
    event_add(sim, spec->path_mtu_us * 1000, EVENT_MTU, NULL);
  }
  if (spec->warmup_us) {
    event_add(sim, spec->warmup_us * 1000, EVENT_WARMUP, NULL);
  }
  pattern_begin(sim);
}

static void change_mtu(struct sim *sim)
{
  if (sim->done == sim->flow_count) {
    return;
  }
  sim->mtu_low = !sim->mtu_low;
  sim->counts.mtu_changes++;
  event_add(sim, sim->now + sim->spec.path_mtu_us * 1000, EVENT_MTU, NULL);
}

static void remember_warmup(struct sim *sim)
{
  for (uint64_t i = 0; i < sim->flow_count; i++) {
    sim->flows[i].at_warmup = sim->flows[i].end[1].received;
  }
}

static void handle(struct sim *sim, const struct sim_event *event)
{
  switch (event->kind) {
  case EVENT_FRAME: link_arrived(sim, event->what); break;
  case EVENT_POLL: host_poll(event->what); break;
  case EVENT_START: pattern_start(event->what); break;
  case EVENT_READ: traffic_read(event->what); break;
  case EVENT_MTU: change_mtu(sim); break;
  case EVENT_WARMUP: remember_warmup(sim); break;
  }
}

static void check_progress(struct sim *sim)
{
  uint64_t bound = QUIET_FRAMES + QUIET_FRAMES_EACH * sim->spec.parallel;
  if (sim->quiet_frames > bound) {
    sim_violation(sim, "livelock: %" PRIu64 " frames since the last progress", sim->quiet_frames);
  }
  if (sim->now > LONGEST) {
    sim_violation(sim, "timeout: %" PRIu64 " of %" PRIu64 " connections have ended", sim->done,
                  sim->flow_count);
  }
}

static const struct sim_flow *first_open(const struct sim *sim)
{
  const struct sim_flow *flow = sim->flows;
  while (flow->end[0].closed && flow->end[1].closed) {
    flow++;
  }
  return flow;
}

static void check_end_of_run(struct sim *sim)
{
  if (sim->failed || sim->over) {
    return;
  }
  if (sim->done < sim->flow_count) {
    const struct sim_flow *flow = first_open(sim);
    sim_violation(sim,
                  "stalled: no event is left, but only %" PRIu64 " of %" PRIu64
                  " connections have ended; of %" PRIu64 " the client has %" PRIu64 " of %" PRIu64
                  " bytes acknowledged, the server %" PRIu64 " of %" PRIu64,
                  sim->done, sim->flow_count, flow->id, flow->end[0].acked, flow->end[0].size,
                  flow->end[1].acked, flow->end[1].size);
  }
  for (uint64_t i = 0; i < sim->spec.hosts; i++) {
    check_idle(&sim->hosts[i]);
  }
}

void sim_run(struct sim *sim, const struct sim_spec *spec, FILE *capture)
{
  begin(sim, spec, capture);
  uint64_t until = spec->duration_us ? spec->duration_us * 1000 : SIM_NEVER;
  struct sim_event event;
  while (!sim->failed && !sim->over && event_take(sim, &event)) {
    if (event.when >= until) {
      sim->over = true;
    }
    sim->now = event.when < until ? event.when : until;
    sim->event_total++;
    if (!sim->over) {
      handle(sim, &event);
      check_progress(sim);
    } else if (event.kind == EVENT_FRAME) {
      free(event.what);
    }
  }
  check_end_of_run(sim);
}

void sim_free(struct sim *sim)
{
  struct sim_event event;
  while (event_take(sim, &event)) {
    if (event.kind == EVENT_FRAME) {
      free(event.what);
    }
  }
  for (uint64_t i = 0; i < sim->spec.hosts; i++) {
    host_destroy(&sim->hosts[i]);
  }
  free(sim->events);
  free(sim->hosts);
  free(sim->core_up);
  free(sim->core_down);
  free(sim->flows);
  free(sim->steps);
}
