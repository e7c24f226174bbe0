/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: the data that each side sends and must receive. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/* The content of all streams. No window or chunk has the same period. */
static uint8_t pattern_bytes[SIM_PATTERN + SIM_PUSH_MAX];

void traffic_pattern_create(void)
{
  struct sim_random random = random_stream(9293, 0);
  for (uint32_t i = 0; i < sizeof pattern_bytes; i++) {
    pattern_bytes[i] = i < SIM_PATTERN ? (uint8_t)random_next(&random)
                                       : pattern_bytes[i - SIM_PATTERN];
  }
}

static const uint8_t *stream(const struct sim_end *sender, uint64_t position)
{
  return pattern_bytes + (sender->key + position) % SIM_PATTERN;
}

static const char *name(const struct sim_end *end)
{
  return end == &end->flow->end[0] ? "client" : "server";
}

static void moved(struct sim_end *end) { end->flow->sim->quiet_frames = 0; }

/* Closes an end that has pushed everything. The listening end waits until the other end has
 * closed. */
static void close_if_done(struct sim_end *end)
{
  bool first = end == &end->flow->end[0];
  if (end->tcp && end->established && !end->closing && end->pushed == end->size &&
      (first || harp_flow_at_end(end->tcp))) {
    end->closing = true;
    harp_flow_close(end->tcp);
  }
}

static void pull(void *user, struct harp_tcp *tcp, uint32_t room)
{
  struct sim_end *end = user;
  const struct sim_spec *spec = &end->flow->sim->spec;
  uint64_t limit = end->size < end->allowed ? end->size : end->allowed;
  while (room && end->pushed < limit) {
    if (harp_flow_room(tcp) == 0) {
      end->host->starved = true;
      break;
    }
    uint64_t part = limit - end->pushed;
    uint64_t unacked = end->pushed - end->acked;
    uint64_t leave = spec->outstanding > unacked ? spec->outstanding - unacked : 0;
    part = part < leave ? part : leave;
    part = part < spec->chunk ? part : spec->chunk;
    if (part == 0 || harp_flow_push(tcp, stream(end, end->pushed), (uint32_t)part, false) != 0) {
      break;
    }
    end->pushed += part;
    room -= (uint32_t)(part < room ? part : room);
  }
  close_if_done(end);
}

static void complain(struct sim_end *end, const uint8_t *data, size_t length)
{
  const uint8_t *wanted = stream(end->peer, end->received);
  size_t i = 0;
  while (i < length && data[i] == wanted[i]) {
    i++;
  }
  sim_violation(end->flow->sim, "connection %llu: byte %llu that the %s received is wrong",
                (unsigned long long)end->flow->id, (unsigned long long)(end->received + i),
                name(end));
}

/* A slow reader has a budget for each interval. The rest waits for the next one. */
static size_t affordable(struct sim_end *end, size_t length)
{
  struct sim *sim = end->flow->sim;
  uint64_t turn = sim->now / (sim->spec.read_every_us * 1000);
  if (sim->spec.read_bytes == 0) {
    return length;
  }
  if (turn != end->turn) {
    end->turn = turn;
    end->budget = sim->spec.read_bytes;
  }
  if (length > end->budget) {
    length = end->budget;
    sim->counts.reader_stalls++;
    if (!end->stalled) {
      end->stalled = true;
      event_add(sim, (turn + 1) * sim->spec.read_every_us * 1000, EVENT_READ, end);
    }
  }
  end->budget -= length;
  return length;
}

static size_t deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  struct sim_end *end = user;
  struct sim *sim = end->flow->sim;
  length = affordable(end, length);
  if (memcmp(data, stream(end->peer, end->received), length) != 0) {
    complain(end, data, length);
  }
  uint64_t before = end->received;
  end->received += length;
  end->flow->finished = sim->now;
  sim->delivered += length;
  if (length) {
    moved(end);
    pattern_delivered(end, before);
  }
  return length;
}

/* The stack's references are scarce, so connections that found none try again. */
static void feed(struct sim_host *host)
{
  host->starved = false;
  for (uint32_t i = 0; i < host->ends_used; i++) {
    if (host->ends[i]->tcp) {
      harp_flow_ready(host->ends[i]->tcp);
    }
  }
}

static void acked(void *user, struct harp_tcp *tcp, uint32_t bytes)
{
  struct sim_end *end = user;
  end->acked += bytes;
  moved(end);
  check_end(end);
  harp_flow_ready(tcp);
  if (end->host->starved) {
    feed(end->host);
  }
}

static void readable(void *user, struct harp_tcp *tcp) { close_if_done(user); }

static void begin(struct sim_end *end)
{
  const struct sim_spec *spec = &end->flow->sim->spec;
  end->established = true;
  moved(end);
  if (spec->trust) {
    harp_flow_set_harp_peer(end->tcp, (uint32_t)spec->rto_min_us);
  }
  host_add_end(end->host, end);
  harp_flow_ready(end->tcp);
  close_if_done(end);
}

static void established(void *user, struct harp_tcp *tcp) { begin(user); }

static void closed(void *user, struct harp_tcp *tcp, int error)
{
  struct sim_end *end = user;
  struct sim *sim = end->flow->sim;
  end->tcp = NULL;
  end->closed = true;
  moved(end);
  host_remove_end(end->host, end);
  if (error || end->received != end->peer->size || end->acked != end->size) {
    sim_violation(sim,
                  "connection %llu: the %s's side ended with error %d, %llu of %llu bytes "
                  "acknowledged, %llu of %llu received",
                  (unsigned long long)end->flow->id, name(end), error,
                  (unsigned long long)end->acked, (unsigned long long)end->size,
                  (unsigned long long)end->received, (unsigned long long)end->peer->size);
  }
  if (end->peer->closed) {
    pattern_done(end->flow);
  }
}

static const struct harp_flow_ops traffic_ops = {
    .established = established,
    .pull = pull,
    .deliver = deliver,
    .acked = acked,
    .readable = readable,
    .closed = closed,
};

/* Finds the connecting end by its address and port. */
static int accept_there(void *user, struct harp_tcp *tcp)
{
  struct sim_host *host = user;
  struct harp_endpoint peer = harp_flow_peer(tcp);
  uint32_t index = __builtin_bswap32(peer.address) - __builtin_bswap32(host_address(0));
  struct sim_end *client = host->sim->hosts[index].by_port[peer.port];
  if (!client || client->peer->tcp || client->peer->closed || client->peer->host != host) {
    sim_violation(host->sim, "host %u accepts a connection that no host opened", host->index);
    return -1;
  }
  struct sim_end *end = client->peer;
  end->tcp = tcp;
  harp_flow_attach(tcp, &traffic_ops, end);
  begin(end);
  return 0;
}

const struct harp_flow_ops traffic_listener = {.accept = accept_there};

static void prepare(struct sim_flow *flow, int side, uint16_t host)
{
  struct sim_end *end = &flow->end[side];
  end->flow = flow;
  end->peer = &flow->end[!side];
  end->host = &flow->sim->hosts[host];
  end->key = (uint32_t)((flow->id * 2 + (uint64_t)side) * 104729 % SIM_PATTERN);
}

void traffic_start(struct sim_flow *flow, uint16_t client, uint16_t server)
{
  struct sim *sim = flow->sim;
  struct sim_end *end = &flow->end[0];
  struct harp_endpoint peer = {host_address(server), SIM_PORT};
  prepare(flow, 0, client);
  prepare(flow, 1, server);
  flow->started = sim->now;
  host_begin(end->host);
  int result = harp_flow_connect(end->host->stack, 0, peer, &traffic_ops, end, &end->tcp);
  if (result != 0) {
    sim_violation(sim, "connection %llu: connect failed with %d", (unsigned long long)flow->id,
                  result);
    return;
  }
  end->host->by_port[harp_flow_local_port(end->tcp)] = end;
  host_end(end->host);
}

void traffic_read(struct sim_end *end)
{
  end->stalled = false;
  if (end->tcp) {
    host_begin(end->host);
    harp_flow_resume(end->tcp);
    close_if_done(end);
    host_end(end->host);
  }
}
