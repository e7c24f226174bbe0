/* SPDX-License-Identifier: Apache-2.0 */
/* A host: a stack with a NIC, and the times of its polls. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

enum {
  IDLE_POLLS = 10000,      /* with a timer due but without any frame: the stack spins */
  FIRST_HOST = 0x0a000001, /* 10.0.0.1 */
};

uint32_t host_address(uint16_t index) { return htonl(FIRST_HOST + index); }

static void configure(struct sim_host *host)
{
  const struct sim_spec *spec = &host->sim->spec;
  struct harp_stack_config *config = &host->config;
  harp_stack_config_default(config);
  config->address = host_address(host->index);
  config->prefix = 16;
  config->mtu = (uint16_t)spec->mtu;
  config->seed[0] = random_next(&host->sim->random);
  config->seed[1] = random_next(&host->sim->random);
  uint64_t share = spec->connections + spec->hosts;
  /* An eighth is reserved for connections opened by this host. */
  config->max_connections = (uint32_t)(share < 20000 ? share : 20000) * 8 / 7 + 16;
  config->packets = (uint32_t)spec->packets;
  config->initial_window = (uint32_t)spec->initial_window;
  config->rto_initial_us = (uint32_t)spec->rto_initial_us;
  config->rto_min_us = (uint32_t)(spec->trust ? 200000 : spec->rto_min_us);
  config->delayed_ack_us = (uint32_t)spec->delayed_ack_us;
  config->timestamps = (int)spec->timestamps;
  config->sack = (int)spec->sack;
  config->window_scale = (int)spec->window_scale;
  config->rcvbuf = (uint32_t)spec->rcvbuf;
  if (spec->vary) {
    spec_vary(spec, host->index, config);
  }
}

static void listen_there(struct sim_host *host)
{
  struct harp_listener *listener;
  if (harp_flow_listen(host->stack, SIM_PORT, 100000, &traffic_listener, host, &listener) != 0) {
    sim_violation(host->sim, "host %u: listen failed", host->index);
  }
}

void host_create(struct sim *sim, uint16_t index)
{
  struct sim_host *host = &sim->hosts[index];
  const struct sim_spec *spec = &sim->spec;
  bool odd = index & 1;
  *host = (struct sim_host){.sim = sim, .index = index, .wake = SIM_NEVER};
  host->nic = (struct sim_link){spec->rate_mbps, spec->delay_ns / 2, spec->nic_queue};
  host->down = (struct sim_link){spec->rate_mbps, spec->delay_ns - spec->delay_ns / 2, spec->queue};
  /* Two senders at exactly a link's rate could lock each other out of a full queue forever. Real
   * clocks differ, so the NIC's delay varies. */
  host->nic.uneven = true;
  host->nic.random = random_stream(spec->seed, 2000u + index);
  host->down.faulty = spec->faulty == 0 || (spec->faulty == 1) == odd;
  host->down.random = random_stream(spec->seed, 1000u + index);
  host->by_port = sim_allocate(65536, sizeof *host->by_port);
  configure(host);
  struct harp_stack_io io = {.user = host, .transmit = device_transmit, .max_frame = 65535};
  if (spec->tso) {
    io.offloads = HARP_OFFLOAD_TSO | HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_RX_CHECKSUM;
  }
  if (harp_stack_create_io(&host->stack, &host->config, &io) != 0) {
    fprintf(stderr, "sim: host %u: the stack rejects its configuration\n", index);
    abort();
  }
  harp_stack_set_time(host->stack, sim->now);
  listen_there(host);
}

void host_destroy(struct sim_host *host)
{
  for (uint32_t i = 0; i < host->inbox_used; i++) {
    free(host->inbox[i]);
  }
  free(host->inbox);
  free(host->by_port);
  free(host->ends);
  harp_stack_destroy(host->stack);
}

void host_add_end(struct sim_host *host, struct sim_end *end)
{
  if (host->ends_used == host->ends_size) {
    host->ends_size = host->ends_size ? 2 * host->ends_size : 16;
    host->ends = realloc(host->ends, host->ends_size * sizeof(struct sim_end *));
    if (!host->ends) {
      abort();
    }
  }
  host->ends[host->ends_used++] = end;
}

void host_remove_end(struct sim_host *host, struct sim_end *end)
{
  for (uint32_t i = 0; i < host->ends_used; i++) {
    if (host->ends[i] == end) {
      host->ends[i] = host->ends[--host->ends_used];
      return;
    }
  }
}

static void poll_at(struct sim_host *host, uint64_t when)
{
  if (when < host->wake) {
    host->wake = when;
    event_add(host->sim, when, EVENT_POLL, host);
  }
}

/* A host that has just polled waits, so that frames gather. */
static uint64_t next_turn(const struct sim_host *host)
{
  uint64_t turn = host->last_poll + host->sim->spec.poll_ns;
  return turn > host->sim->now ? turn : host->sim->now;
}

void host_receive(struct sim_host *host, struct sim_frame *frame)
{
  if (host->inbox_used == host->inbox_size) {
    host->inbox_size = host->inbox_size ? 2 * host->inbox_size : 64;
    host->inbox = realloc(host->inbox, host->inbox_size * sizeof(struct sim_frame *));
    if (!host->inbox) {
      abort();
    }
  }
  host->inbox[host->inbox_used++] = frame;
  poll_at(host, next_turn(host));
}

void host_begin(struct sim_host *host) { harp_stack_set_time(host->stack, host->sim->now); }

/* A timer is due now. A full NIC or a held acknowledgement explains that; otherwise it must stop
 * soon. */
static void something_is_due(struct sim_host *host, bool moved)
{
  struct sim *sim = host->sim;
  uint64_t soon = sim->now + sim->spec.poll_ns;
  if (host->refused) {
    uint64_t room = link_has_room_at(&host->nic, sim->now);
    poll_at(host, room > soon ? room : soon);
    return;
  }
  host->idle_polls = moved ? 0 : host->idle_polls + 1;
  if (host->idle_polls > IDLE_POLLS) {
    sim_violation(sim, "host %u: %d polls found a timer due, but no frame moved", host->index,
                  IDLE_POLLS);
  }
  poll_at(host, soon);
}

static void schedule(struct sim_host *host, bool moved)
{
  uint64_t deadline = harp_stack_next_deadline(host->stack);
  if (deadline <= host->sim->now) {
    something_is_due(host, moved);
    return;
  }
  host->idle_polls = 0;
  if (deadline != SIM_NEVER) {
    poll_at(host, deadline);
  }
}

void host_end(struct sim_host *host)
{
  uint64_t frames = host->sim->counts.frames;
  host->refused = false;
  harp_stack_advance(host->stack, host->sim->now);
  check_host(host);
  schedule(host, host->sim->counts.frames != frames);
}

void host_poll(struct sim_host *host)
{
  struct sim *sim = host->sim;
  if (host->wake != sim->now) {
    return; /* another event moved the poll */
  }
  host->wake = SIM_NEVER;
  host->last_poll = sim->now;
  host_begin(host);
  for (uint32_t i = 0; i < host->inbox_used; i++) {
    struct sim_frame *frame = host->inbox[i];
    watch_arrived(sim, frame);
    capture_frame(sim, host->index, frame, false);
    struct harp_rx_frame received = {
        .header = frame->data, .header_length = frame->length, .checksum_good = frame->unsummed};
    harp_stack_receive(host->stack, &received);
    free(frame);
  }
  host->inbox_used = 0;
  host_end(host);
}
