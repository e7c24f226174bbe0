/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/nic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/log.h"
#include "harp/time_units.h"
#include "plugin/link/link.h"

enum {
  HELLO_TIMEOUT_MS = 5000,                      /* time for an unauthenticated peer's hello */
  PORT_RELEASE_DELAY_MS = 2000,                 /* delay before a used local port is released */
  LINGERING_MOST = HARP_ENGINE_CONNECTIONS / 4, /* of an instance, older than timeout_ms */
};

/* --- Used local ports --- */

struct used_port {
  struct used_port *next;
  uint64_t since; /* ns */
  uint16_t port;
};

static void release_port(struct nic_instance *at, uint16_t port)
{
  harp_engine_release(at->nic->engine, harp_instance_number(at->instance), port);
}

void nic_delay_port_release(struct nic_instance *at, uint16_t port)
{
  struct used_port *used = malloc(sizeof *used);
  if (!used) {
    release_port(at, port);
    return;
  }
  *used = (struct used_port){at->used_ports, harp_instance_now(at->instance), port};
  at->used_ports = used;
}

static void release_used_ports(struct nic_instance *at, uint64_t least_age)
{
  struct used_port **link = &at->used_ports;
  while (*link) {
    struct used_port *used = *link;
    if (harp_instance_now(at->instance) - used->since < least_age) {
      link = &used->next;
      continue;
    }
    *link = used->next;
    release_port(at, used->port);
    free(used);
  }
}

/* --- The tick of each instance --- */

/* The time for an unauthenticated peer's hello, ms. A peer that has shown the token gets at least
 * timeout_ms to prove the key, since its process may be stopped meanwhile. */
static uint64_t hello_timeout_ms(const struct link_flow *flow)
{
  uint32_t timeout = flow_config(flow)->timeout_ms;
  return flow->proof.challenged && timeout > HELLO_TIMEOUT_MS ? timeout : HELLO_TIMEOUT_MS;
}

/* Whether the flow of a closed link only waits for its peer, which has bytes to acknowledge, or
 * does not close its side. */
static bool lingers(const struct link_flow *flow)
{
  return flow->tcp && !flow->link && !flow->listener && !flow->replaces && !flow->move;
}

/* Resets the oldest lingering flows beyond LINGERING_MOST, so that new links find a connection. A
 * peer may keep them open as long as it likes. New flows are at the front of the list. */
static void limit_lingering(struct nic_instance *at)
{
  struct link_flow *next;
  uint64_t running = harp_instance_running_time(at->instance);
  unsigned kept = 0;
  for (struct link_flow *flow = at->flows; flow; flow = next) {
    next = flow->next;
    if (lingers(flow) && ++kept > LINGERING_MOST &&
        running - flow->lost > flow_config(flow)->timeout_ms * NS_PER_MS) {
      flow_close_free(flow, FLOW_CLOSE_RESET);
    }
  }
}

static void tick(struct harp_ticker *ticker, struct harp_instance *instance, uint64_t now)
{
  struct nic_instance *at = (struct nic_instance *)ticker;
  uint64_t links = 0;
  struct link_flow *next;
  release_used_ports(at, PORT_RELEASE_DELAY_MS * NS_PER_MS);
  uint64_t running = harp_instance_running_time(instance);
  for (struct link_flow *flow = at->flows; flow; flow = next) {
    next = flow->next;
    flow_count_wait(flow);
    if (flow->tcp) {
      harp_flow_count_wait(flow->tcp);
    }
    flow_publish(flow);
    flow_watch(flow, now);
    flow_watch_lost(flow);
    flow_watch_ended(flow);
    flow_watch_peer(flow, now);
    link_watch_opening(flow);
    links += flow->link && flow->number == 0;
    if (flow->listener && running - flow->born > hello_timeout_ms(flow) * NS_PER_MS) {
      harp_instance_count(instance, HARP_COUNTER_unauthenticated_drops, 1);
      flow_close_free(flow, FLOW_CLOSE_RESET);
    } else {
      flow_move_watch(flow);
    }
  }
  limit_lingering(at);
  harp_instance_gauge(instance, HARP_COUNTER_links, links);
  if (harp_instance_number(instance) == 0 && at->nic->device == at->nic->transport->nics.home) {
    /* The process has one log, so one instance counts for all. */
    harp_instance_gauge(instance, HARP_COUNTER_log_lines_dropped, harp_log_dropped());
  }
}

static void start_ticking(struct harp_instance *instance, void *argument)
{
  struct nic_instance *at = argument;
  harp_instance_add_ticker(instance, &at->ticker);
}

int nic_begin(struct transport_nic *nic)
{
  int result = 0;
  for (unsigned i = 0; i < nic_instances(nic) && result == 0; i++) {
    struct nic_instance *at = &nic->parts[i];
    *at = (struct nic_instance){
        .ticker.tick = tick, .nic = nic, .instance = nic->engine->instances[i]};
    result = harp_instance_call(at->instance, start_ticking, at, HARP_INSTANCE_CALL_MS);
  }
  if (result == 0 && nic->shared_port) {
    nic->shared_listener = listener_open_shared(nic);
    result = nic->shared_listener ? 0 : -ENOMEM;
  }
  if (result == 0) {
    atomic_store(&nic->state, NIC_STARTED);
  }
  return result;
}

/* --- Life --- */

struct transport_nic *nic_create(struct transport *transport, unsigned device)
{
  struct transport_nic *nic = calloc(1, sizeof *nic);
  if (nic) {
    nic->transport = transport;
    nic->device = device;
    nic->engine = transport->nics.engines[device];
    if (transport->nics.claims.count > 1) {
      /* Flows cannot move here without this port. */
      harp_engine_reserve(nic->engine, 0, 0, &nic->shared_port);
    }
  }
  return nic;
}

static void drop_flows(struct harp_instance *instance, void *argument)
{
  struct nic_instance *at = argument;
  while (at->flows) {
    flow_close_free(at->flows, FLOW_CLOSE_EXIT);
  }
  release_used_ports(at, 0);
}

void nic_drop_flows(struct transport_nic *nic)
{
  if (nic->shared_listener) {
    listener_put(nic->shared_listener);
  }
  for (unsigned i = 0; i < nic_instances(nic); i++) {
    harp_instance_call(nic->parts[i].instance, drop_flows, &nic->parts[i], HARP_INSTANCE_CALL_MS);
  }
}

/* Starts the engine. Called with transport->start_lock. */
static void start(struct transport_nic *nic)
{
  char error[HARP_ENGINE_ERROR_SIZE] = "its worker does not answer: this host is too busy";
  int result = harp_engine_start(nic->engine, error);
  if (result == 0) {
    result = nic_begin(nic);
  }
  if (result == 0) {
    nic_introduce(nic);
    return;
  }
  harp_log_post(HARP_LOG_WARN, "HARP: device %u (%.100s) is served by the home NIC: %s",
                nic->device, nic->engine->config.device, error);
  for (unsigned i = 0; i < nic_instances(nic); i++) {
    harp_instance_stop(nic->engine->instances[i]);
  }
  atomic_store(&nic->state, NIC_FAILED);
}

/* At the kernel's address, each port is an open file. */
const char *nic_port_remedy(int result)
{
  return result == -EMFILE || result == -ENFILE
             ? "raise the limit of open files (ulimit -n), or lower `instances`"
         : result == -ETIMEDOUT
             ? "if this host has an agent, it does not answer: start it again"
             : "free local ports or memory, widen `tcp_ports` or the agent's --block, or lower "
               "`instances`";
}

bool nic_start(struct transport_nic *nic)
{
  if (atomic_load(&nic->state) == NIC_OPENED) {
    pthread_mutex_lock(&nic->transport->start_lock);
    if (atomic_load(&nic->state) == NIC_OPENED) {
      start(nic);
    }
    pthread_mutex_unlock(&nic->transport->start_lock);
  }
  return nic_runs(nic);
}

void nic_introduce(const struct transport_nic *nic)
{
  const struct harp_engine *engine = nic->engine;
  bool alone = nic->transport->nics.claims.devices.count == 1;
  char device[32] = "";
  if (!alone) {
    snprintf(device, sizeof device, "device %u: ", nic->device);
  }
  harp_log_post(HARP_LOG_INFO,
                "HARP " HARP_VERSION ": %s%s: %s; %u instance%s, polled by %s (%u CPUs; spinning "
                "needs %u), %u flow%s per link; %s%s",
                device, engine->config.device, engine->port->info.summary, engine->instance_count,
                engine->instance_count == 1 ? "" : "s",
                engine->threads.callers ? "NCCL's threads" : "HARP's worker", engine->threads.cpus,
                engine->threads.wanted, engine->config.flows, engine->config.flows == 1 ? "" : "s",
                engine->config.path, alone ? "; all hosts of the job must use HARP, or none" : "");
}

bool nic_stripes(const struct transport_nic *nic)
{
  return nic->transport->driven > 1 && strcmp(nic->engine->config.stripe, "all") == 0;
}

struct transport_nic *nic_next(const struct transport *transport, const struct transport_nic *after)
{
  unsigned i = after ? after->device + 1 : 0;
  for (; i < transport->nics.claims.devices.count; i++) {
    struct transport_nic *nic = transport->of_device[i];
    if (nic && nic_runs(nic)) {
      return nic;
    }
  }
  return NULL;
}
