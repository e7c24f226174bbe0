/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "harp/engine/agent_socket.h"
#include "harp/engine/clock.h"
#include "harp/engine/dump.h"
#include "harp/engine/own_address.h"
#include "harp/engine/rank_topology.h"
#include "harp/stack/flow.h"
#include "harp/time_units.h"

enum {
  AGENT_RESTART_MS = 5000, /* an agent that restarts listens again within this time */
  AGENT_PAUSE_US = 50000,  /* between two tries */
  PACKETS = 8192,          /* 2 KiB each, per instance */
  SYN_RTO_US = 200000,     /* initial RTO: below RFC 6298's 1 s, since peers are in one network */
  RCVBUF = 4 << 20,        /* receive window of a flow: about 100 Gbit/s times 300 us */
  RCVBUF_LEAST = 64 << 10,
};

/* --- Configuration of the port and the stacks --- */

static struct harp_port_config port_config(const struct harp_config *config, bool guest)
{
  struct harp_port_config port = {
      .device = config->device,
      .queues = (uint16_t)config->instances,
      .address = config->address.kernel ? 0 : config->address.address,
      .prefix = config->address.prefix,
      .gateway = config->gateway,
      .mtu = config->mtu,
      .ports_first = config->tcp_ports.first,
      .ports_last = config->tcp_ports.last,
      .hugepages = config->hugepages,
      .guest = guest,
      .agent = harp_agent_socket(),
  };
  memcpy(port.mac, config->mac, sizeof port.mac);
  return port;
}

static int stack_config(const struct harp_engine *engine, struct harp_stack_config *stack)
{
  const struct harp_port_info *info = &engine->port->info;
  harp_stack_config_default(stack);
  stack->link = HARP_LINK_ETHERNET;
  memcpy(stack->mac, info->mac, sizeof stack->mac);
  stack->address = info->address;
  stack->prefix = info->prefix;
  stack->gateway = engine->config.gateway ? engine->config.gateway : info->gateway;
  stack->mtu = info->mtu;
  stack->max_connections = HARP_ENGINE_CONNECTIONS;
  stack->packets = PACKETS;
  stack->rto_initial_us = SYN_RTO_US;
  /* Drops by a device with a small receive buffer cost more than a small window. */
  stack->rcvbuf = RCVBUF;
  uint32_t depth = info->receive_depth / 2;
  if (depth && depth < RCVBUF) {
    stack->rcvbuf = depth > RCVBUF_LEAST ? depth : RCVBUF_LEAST;
  }
  stack->cc = engine->config.cc;
  ssize_t got = getrandom(stack->seed, sizeof stack->seed, 0);
  return got == (ssize_t)sizeof stack->seed ? 0 : -EIO;
}

/* --- Opening --- */

/* Whether `harp capture` needs the instances' help. */
static bool sends_copies(const struct harp_engine *engine)
{
  return engine->statfile.path[0] && !harp_config_has_scheme(engine->config.device, "packet");
}

static int create_instances(struct harp_engine *engine, char *error)
{
  const struct harp_config *config = &engine->config;
  struct harp_stack_config stack;
  int result = stack_config(engine, &stack);
  harp_poll_threads_choose(&engine->threads, config, "");
  for (unsigned i = 0; i < config->instances && result == 0; i++) {
    struct harp_instance_config instance = {
        .port = engine->port,
        .config = config,
        .queue = i,
        .stack = stack,
        .only_asks = engine->port->info.shares_address,
        .tentative = harp_own_address_doubtful(&engine->port->info),
        .counters = harp_statfile_counters(&engine->statfile, i),
        .statistics = sends_copies(engine) ? engine->statfile.path : NULL,
        .cpu = i < config->cores.count ? config->cores.cpu[i] : -1,
        .callers_poll = engine->threads.callers,
    };
    result = harp_instance_create(&engine->instances[i], &instance);
    if (result == 0) {
      engine->instance_count++;
      engine->instances[i]->port_owner = engine->port_owner;
      engine->instances[i]->siblings = engine->instances;
    }
  }
  if (result != 0) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE,
             "cannot make %u instances (%s): free memory, raise the limit of open files "
             "(ulimit -n), or lower `instances` in %.300s",
             config->instances, strerror(-result), config->path);
  }
  return result;
}

static int start_workers(struct harp_engine *engine, char *error)
{
  for (unsigned i = 0; i < engine->instance_count; i++) {
    int result = harp_instance_start(engine->instances[i]);
    if (result != 0) {
      snprintf(error, HARP_ENGINE_ERROR_SIZE,
               "cannot start a worker thread (%s): raise the limit on processes (ulimit -u, "
               "pids.max)",
               strerror(-result));
      return result;
    }
  }
  return 0;
}

static int open_statistics(struct harp_engine *engine)
{
  const struct harp_port_info *info = &engine->port->info;
  char text[INET_ADDRSTRLEN], address[32];
  struct harp_rank_topology topology;
  harp_rank_topology_find(&topology, "");
  inet_ntop(AF_INET, &info->address, text, sizeof text);
  snprintf(address, sizeof address, "%s/%u", text, info->prefix);
  struct harp_stat_identity identity = {
      .instances = engine->config.instances,
      .device = engine->config.device,
      .address = address,
      .config = engine->config.path,
      .about = info->summary,
      .rank = topology.rank,
      .gpu = topology.gpu,
      .world_size = topology.world_size,
      .job = topology.job,
  };
  return harp_statfile_open(&engine->statfile, &identity);
}

static struct harp_engine *allocate(void)
{
  struct harp_engine *engine = calloc(1, sizeof *engine);
  if (engine) {
    engine->statfile.fd = -1;
    pthread_mutex_init(&engine->ports_lock, NULL);
    harp_regions_init(&engine->regions);
  }
  return engine;
}

static int open_port(struct harp_engine *engine, bool guest, char *error)
{
  struct harp_port_config port = port_config(&engine->config, guest);
  if (engine->config.instances > HARP_ENGINE_INSTANCES) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE, "%.300s: instances = %u: at most %d are allowed",
             engine->config.path, engine->config.instances, HARP_ENGINE_INSTANCES);
    return -EINVAL;
  }
  return harp_port_open(&engine->port, engine->config.device, &port, error);
}

int harp_engine_open(struct harp_engine **out, const struct harp_config *config, bool guest,
                     char *error)
{
  struct harp_engine *engine = allocate();
  if (!engine) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE, "no memory");
    return -ENOMEM;
  }
  engine->config = *config;
  engine->config.flows = config->flows ? config->flows : config->instances;
  int result = open_port(engine, guest, error);
  if (result != 0) {
    harp_engine_close(engine);
    return result;
  }
  *out = engine;
  return 0;
}

int harp_engine_start(struct harp_engine *engine, char *error)
{
  int result = open_statistics(engine);
  if (result != 0) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE, "no memory for the counters");
    result = -ENOMEM;
  }
  if (result == 0) {
    result = create_instances(engine, error);
  }
  if (result == 0) {
    result = harp_port_start(engine->port, error);
  }
  if (result == 0) {
    result = start_workers(engine, error);
  }
  if (result == 0) {
    result = harp_own_address_take(engine, error);
  }
  return result;
}

void harp_engine_close(struct harp_engine *engine)
{
  if (!engine || engine->forgotten) {
    return;
  }
  for (unsigned i = 0; i < engine->instance_count; i++) {
    harp_instance_stop(engine->instances[i]);
  }
  for (unsigned i = 0; i < engine->instance_count; i++) {
    harp_instance_destroy(engine->instances[i]);
  }
  if (engine->statfile.map) {
    harp_statfile_close(&engine->statfile);
  }
  if (engine->port) {
    harp_port_close(engine->port);
  }
  harp_regions_clear(&engine->regions);
  pthread_mutex_destroy(&engine->ports_lock);
  free(engine);
}

void harp_engine_unpublish(const struct harp_engine *engine)
{
  unlink(engine->statfile.path);
  for (unsigned i = 0; i < engine->instance_count; i++) {
    unlink(engine->instances[i]->capture.path);
  }
}

void harp_engine_forget(struct harp_engine *engine)
{
  engine->forgotten = true;
  engine->port->ops->forget(engine->port);
  harp_statfile_forget(&engine->statfile);
  for (unsigned i = 0; i < engine->instance_count; i++) {
    harp_capture_forget(&engine->instances[i]->capture);
  }
}

/* --- Routes --- */

bool harp_engine_on_link(const struct harp_engine *engine, uint32_t address)
{
  const struct harp_port_info *info = &engine->port->info;
  return ((address ^ info->address) & harp_netmask(info->prefix)) == 0;
}

bool harp_engine_reaches(const struct harp_engine *engine, uint32_t address)
{
  return engine->config.gateway || engine->port->info.gateway ||
         harp_engine_on_link(engine, address);
}

bool harp_engine_link_up(const struct harp_engine *engine)
{
  return !harp_instance_link_down(engine->instances[0]) && harp_port_has_carrier(engine->port);
}

/* --- Local ports --- */

int harp_engine_try_reserve(struct harp_engine *engine, unsigned instance, uint16_t wanted,
                            uint16_t *port)
{
  pthread_mutex_lock(&engine->ports_lock);
  int result = engine->port->ops->reserve(engine->port, instance, wanted, port);
  if (result == 0) {
    atomic_store_explicit(&engine->port_owner[*port], (uint8_t)(instance + 1),
                          memory_order_release);
  }
  pthread_mutex_unlock(&engine->ports_lock);
  return result;
}

int harp_engine_reserve(struct harp_engine *engine, unsigned instance, uint16_t wanted,
                        uint16_t *port)
{
  uint64_t begun = harp_clock_ns();
  int result = harp_engine_try_reserve(engine, instance, wanted, port);
  while (result == -ETIMEDOUT && harp_clock_ns() - begun < AGENT_RESTART_MS * NS_PER_MS) {
    harp_sleep_us(AGENT_PAUSE_US); /* without the lock: an instance may release a port */
    result = harp_engine_try_reserve(engine, instance, wanted, port);
  }
  return result;
}

void harp_engine_release(struct harp_engine *engine, unsigned instance, uint16_t port)
{
  pthread_mutex_lock(&engine->ports_lock);
  atomic_store_explicit(&engine->port_owner[port], 0, memory_order_release);
  engine->port->ops->release(engine->port, instance, port);
  pthread_mutex_unlock(&engine->ports_lock);
}

/* --- Traces --- */

void harp_engine_dump(struct harp_engine *engine, const char *reason)
{
  const struct harp_trace *traces[HARP_ENGINE_INSTANCES];
  for (unsigned i = 0; i < engine->instance_count; i++) {
    traces[i] = &engine->instances[i]->trace;
  }
  harp_dump_begin(traces, engine->instance_count, engine->config.device, reason, harp_clock_ns());
}
