/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a scenario from a seed: some faults and some settings. */
#include "harp/stack/bytes.h"
#include "tests/sim/sim.h"

/* Returns a probability, or 0 in two thirds of the runs. */
static double fault(struct sim_random *random, double most)
{
  if (random_below(random, 3)) {
    return 0;
  }
  return most * (double)random_scale(random, 1, 1 << 12) / (1 << 12);
}

/* The smallest useful buffer is a few units of the scaled window field. */
static uint64_t buffer_floor(int window_scale)
{
  return HARP_MAX(4000, 4ull << HARP_MAX(window_scale, 0));
}

static void draw_faults(struct sim_spec *spec, struct sim_random *random)
{
  spec->drop = fault(random, 0.08);
  spec->burst = fault(random, 0.01);
  spec->burst_end = 0.05 + 0.01 * (double)random_below(random, 60);
  spec->burst_us = random_scale(random, 100, 50000);
  spec->tail = fault(random, 0.2);
  spec->duplicate = fault(random, 0.1);
  spec->reorder = fault(random, 0.2);
  spec->reorder_ns = random_scale(random, 1000, 20000000);
  spec->corrupt = fault(random, 0.03);
  spec->faulty = random_below(random, 3);
  if (random_below(random, 5) == 0) {
    spec->path_mtu = random_between(random, 576, 1400);
    spec->path_mtu_us = random_scale(random, 5000, 1000000);
  }
}

static void draw_network(struct sim_spec *spec, struct sim_random *random)
{
  static const uint64_t rates[] = {10, 100, 1000, 10000, 25000, 100000, 400000};
  static const uint64_t mtus[] = {576, 1280, 1500, 1500, 1500, 4096, 9000, 9000};
  spec->hosts = 2 * random_between(random, 1, 4);
  spec->pattern = random_below(random, 4) == 0;
  spec->rate_mbps = rates[random_below(random, 7)];
  spec->delay_ns = random_scale(random, 2000, 50000000);
  spec->queue = random_scale(random, 20000, 1 << 24);
  spec->mtu = mtus[random_below(random, 8)];
  if (random_below(random, 4) == 0) {
    spec->rack = spec->hosts / 2;
    spec->core_mbps = HARP_MAX(spec->rate_mbps / random_between(random, 1, 4), 1);
  }
}

static void draw_stacks(struct sim_spec *spec, struct sim_random *random)
{
  spec->vary = random_below(random, 2);
  spec->tso = random_below(random, 2);
  spec->trust = random_below(random, 2);
  spec->rto_min_us = spec->trust ? 5000 : random_scale(random, 5000, 200000);
  spec->sack = random_below(random, 4) != 0;
  spec->timestamps = random_below(random, 4) != 0;
  spec->window_scale = random_below(random, 15);
  spec->rcvbuf = random_scale(random, buffer_floor((int)spec->window_scale), 1 << 24);
  spec->packets = random_scale(random, 256, 16384);
  spec->delayed_ack_us = random_below(random, 2) ? random_below(random, 200000) : 40000;
  spec->initial_window = random_between(random, 1, 20);
  spec->poll_ns = random_scale(random, 100, 50000);
}

void spec_draw(struct sim_spec *spec, uint64_t seed)
{
  struct sim_random random = random_stream(seed, 42);
  spec_default(spec);
  spec->seed = seed;
  draw_faults(spec, &random);
  draw_network(spec, &random);
  draw_stacks(spec, &random);
  spec->connections = random_between(&random, 30, 110);
  spec->parallel = random_between(&random, 1, spec->connections);
  spec->bytes = random_scale(&random, 200000, 4000000);
  spec->random_bytes = 1;
  spec->duplex = random_below(&random, 2);
  spec->chunk = random_scale(&random, 100, SIM_PUSH_MAX);
  spec->stagger_us = random_below(&random, 2) ? random_below(&random, 1000) : 0;
  if (random_below(&random, 3) == 0) {
    spec->outstanding = random_scale(&random, 2000, 1 << 22);
  }
  if (random_below(&random, 4) == 0) {
    spec->read_bytes = random_scale(&random, 1000, 200000);
    spec->read_every_us = random_scale(&random, 10, 4000);
  }
}

void spec_vary(const struct sim_spec *spec, uint16_t host, struct harp_stack_config *config)
{
  struct sim_random random = random_stream(spec->seed, 5000u + host);
  uint32_t smaller = (uint32_t)random_between(&random, 576, spec->mtu);
  config->mtu = random_below(&random, 3) ? (uint16_t)spec->mtu : (uint16_t)smaller;
  config->sack = spec->sack && random_below(&random, 4) != 0;
  config->timestamps = spec->timestamps && random_below(&random, 4) != 0;
  config->window_scale = (int)random_below(&random, 16) - 1;
  uint64_t floor = buffer_floor(config->window_scale);
  config->rcvbuf = (uint32_t)random_scale(&random, floor, HARP_MAX(floor, spec->rcvbuf));
  config->delayed_ack_us = (uint32_t)random_below(&random, spec->delayed_ack_us + 1);
}
