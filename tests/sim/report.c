/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the result of a run as one line of JSON. */
#include <inttypes.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

static void write_faults(const struct sim_counts *counts, FILE *out)
{
  fprintf(out,
          "\"faults\": {\"dropped\": %" PRIu64 ", \"burst_dropped\": %" PRIu64
          ", \"tail_dropped\": %" PRIu64 ", \"queue_dropped\": %" PRIu64
          ", \"mtu_dropped\": %" PRIu64 ", \"mtu_changes\": %" PRIu64 ", \"duplicated\": %" PRIu64
          ", \"reordered\": %" PRIu64 ", \"corrupted\": %" PRIu64 ", \"nic_full\": %" PRIu64
          ", \"reader_stalls\": %" PRIu64 ", \"window_closed\": %" PRIu64
          ", \"large_segments\": %" PRIu64 "}",
          counts->dropped, counts->burst_dropped, counts->tail_dropped, counts->queue_dropped,
          counts->mtu_dropped, counts->mtu_changes, counts->duplicated, counts->reordered,
          counts->corrupted, counts->nic_full, counts->reader_stalls, counts->window_closed,
          counts->large_segments);
}

/* Sums over all stacks; zero counters are left out. */
static void write_counters(const struct sim *sim, FILE *out)
{
  const char *separator = "";
  fprintf(out, "\"counters\": {");
  for (int i = 0; i < HARP_COUNTERS; i++) {
    uint64_t sum = 0;
    for (uint64_t host = 0; host < sim->spec.hosts; host++) {
      sum += harp_stack_counters(sim->hosts[host].stack)[i];
    }
    if (sum && harp_counter_info[i].kind == HARP_COUNT) {
      fprintf(out, "%s\"%s\": %" PRIu64, separator, harp_counter_info[i].name, sum);
      separator = ", ";
    }
  }
  fprintf(out, "}");
}

/* Returns Mbit/s of payload. */
static uint64_t rate(uint64_t bytes, uint64_t ns)
{
  return ns ? (uint64_t)((__uint128_t)bytes * 8000 / ns) : 0;
}

static uint64_t flow_rate(const struct sim *sim, const struct sim_flow *flow)
{
  uint64_t from = sim->spec.warmup_us * 1000;
  uint64_t until = sim->over ? sim->now : flow->finished;
  from = from > flow->started ? from : flow->started;
  return rate(flow->end[1].received - flow->at_warmup, until - from);
}

static void write_flows(const struct sim *sim, FILE *out)
{
  enum { FLOWS_MAX = 256 };
  fprintf(out, "\"flow_mbps\": [");
  for (uint64_t i = 0; i < sim->flow_count && sim->flow_count <= FLOWS_MAX; i++) {
    fprintf(out, "%s%" PRIu64, i ? ", " : "", flow_rate(sim, &sim->flows[i]));
  }
  fprintf(out, "]");
}

static int ascending(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void write_steps(const struct sim *sim, FILE *out)
{
  uint64_t count = sim->step_count;
  if (count == 0) {
    return;
  }
  qsort(sim->steps, count, sizeof *sim->steps, ascending);
  fprintf(out,
          ", \"steps\": {\"count\": %" PRIu64 ", \"median_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64
          ", \"max_ns\": %" PRIu64 "}",
          count, sim->steps[count / 2], sim->steps[count * 99 / 100], sim->steps[count - 1]);
}

/* Measures from the end of the warm-up, if there is one, to the end of the last connection. */
static uint64_t goodput(const struct sim *sim, uint64_t *took)
{
  uint64_t bytes = 0, until = 0;
  for (uint64_t i = 0; i < sim->flow_count; i++) {
    const struct sim_flow *flow = &sim->flows[i];
    uint64_t end = sim->over ? sim->now : flow->finished;
    bytes += flow->end[0].received + flow->end[1].received - flow->at_warmup;
    until = end > until ? end : until;
  }
  *took = until - sim->spec.warmup_us * 1000;
  return rate(bytes, *took);
}

void report_write(const struct sim *sim, FILE *out)
{
  uint64_t took;
  uint64_t mbps = goodput(sim, &took);
  fprintf(out, "{\"seed\": %" PRIu64 ", \"spec\": \"", sim->spec.seed);
  spec_write(&sim->spec, out);
  fprintf(out,
          "\", \"ns\": %" PRIu64 ", \"connections\": %" PRIu64 ", \"bytes\": %" PRIu64
          ", \"goodput_mbps\": %" PRIu64 ", \"frames\": %" PRIu64 ", \"events\": %" PRIu64 ", ",
          took, sim->done, sim->delivered, mbps, sim->counts.frames, sim->event_total);
  write_faults(&sim->counts, out);
  fprintf(out, ", ");
  write_counters(sim, out);
  fprintf(out, ", ");
  write_flows(sim, out);
  write_steps(sim, out);
  if (sim->failed) {
    fprintf(out, ", \"violation\": \"%s\"", sim->message);
  }
  fprintf(out, "}\n");
  fflush(out);
}
