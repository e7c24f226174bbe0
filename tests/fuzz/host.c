/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/host.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { FIRST_PORT = 10000, TRACE = 64 /* events */ };
#define REST_NS (5 * NS_PER_S)

static struct host *host;
static struct harp_engine *engines[HOST_NICS];

/* --- Time and random numbers (the linker redirects these calls here: --wrap) --- */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
  if (!host || clock != CLOCK_MONOTONIC) {
    return __real_clock_gettime(clock, time);
  }
  *time = (struct timespec){(time_t)(host->now / NS_PER_S), (long)(host->now % NS_PER_S)};
  return 0;
}

ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags)
{
  uint8_t *bytes = out;
  for (size_t i = 0; i < size; i++) {
    bytes[i] = (uint8_t)(++host->drawn * 0x9e3779b97f4a7c15ull >> 56);
  }
  return (ssize_t)size;
}

/* --- The ports --- */

struct nic_port {
  struct harp_port port;
  unsigned nic;
};

static unsigned nic_count(void) { return HARP_MAX(host->setup->nics, 1u); }

static unsigned nic_number(const struct harp_port *port)
{
  return ((const struct nic_port *)port)->nic;
}

static struct host_nic *nic_of(const struct harp_port *port)
{
  return &host->nics[nic_number(port)];
}

/* Returns the number of a port's queue among those of all NICs. */
static unsigned queue_number(const struct harp_port *port, unsigned queue)
{
  return nic_number(port) * host->setup->instances + queue;
}

static bool is_down(const struct harp_port *port) { return host->now < nic_of(port)->down_until; }

static void hand_back(struct host_queue *queue)
{
  for (unsigned i = 0; i < queue->given_count; i++) {
    free(queue->given[i]);
  }
  queue->given_count = 0;
}

/* Like a port that receives into hinted places: the device writes before the frame is checked.
 * *displaced: an earlier frame was longer than its place, so later payload lies elsewhere. */
static void place(const struct host_frame *frame, const struct harp_rx_hint *hint, size_t number,
                  bool *displaced, struct harp_rx_frame *out)
{
  *out = (struct harp_rx_frame){.header = frame->bytes,
                                .header_length = frame->length,
                                .payload = frame->bytes + frame->length,
                                .segment_size = frame->segment_size,
                                .checksum_good = frame->checksum_good};
  size_t offset = hint ? number * hint->stride : 0;
  if (!hint || !frame->scattered || !hint->payload || offset >= hint->length ||
      frame->length <= hint->header_length) {
    return;
  }
  size_t room = HARP_MIN(hint->length - offset, hint->stride);
  uint32_t behind = frame->length - hint->header_length;
  bool overran = frame->length > frame->header_length + room;
  memcpy(hint->payload + offset, frame->bytes + hint->header_length, HARP_MIN(behind, room));
  if (frame->header_length == hint->header_length && !overran && !*displaced) {
    out->header_length = hint->header_length;
    out->payload = hint->payload + offset;
    out->payload_length = behind;
  }
  *displaced |= overran;
}

/* A port may write anywhere in a hinted place (port.h), so the address sanitizer checks all of it.
 * The bytes stay the same, because a receive's bytes behind its message are compared. */
static void touch(uint8_t *place, size_t length)
{
  for (size_t i = 0; place && i < length; i++) {
    volatile uint8_t *byte = place + i;
    *byte = *byte;
  }
}

static int receive(struct harp_port *port, unsigned number, const struct harp_rx_hint *hint,
                   struct harp_rx_frame *frames, int max)
{
  struct host_queue *queue = &host->queues[queue_number(port, number)];
  bool displaced = false;
  hand_back(queue);
  if (is_down(port)) {
    return -ENETDOWN;
  }
  FUZZ_EXPECT(queue->waiting_count <= (unsigned)max);
  if (hint) {
    touch(hint->payload, hint->length);
    touch(hint->next, hint->next_length);
  }
  for (unsigned i = 0; i < queue->waiting_count; i++) {
    place(queue->waiting[i], hint, i, &displaced, &frames[i]);
    queue->given[i] = queue->waiting[i];
  }
  queue->given_count = queue->waiting_count;
  queue->waiting_count = 0;
  return (int)queue->given_count;
}

static int transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame)
{
  if (host->refuses > 0) {
    host->refuses--;
    return -EAGAIN;
  }
  if (is_down(port)) {
    return -ENETDOWN;
  }
  host->on_transmit(queue_number(port, queue), frame);
  return 0;
}

static void flush(struct harp_port *port, unsigned queue) {}

static int reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct host_nic *nic = nic_of(port);
  for (unsigned i = queue; i < HOST_PORTS; i += HOST_INSTANCES) {
    if (!nic->ports[i]) {
      nic->ports[i] = true;
      host->ports_taken++;
      *local = (uint16_t)(FIRST_PORT + i);
      return 0;
    }
  }
  return -EADDRINUSE;
}

static void release(struct harp_port *port, unsigned queue, uint16_t local)
{
  struct host_nic *nic = nic_of(port);
  unsigned i = (unsigned)local - FIRST_PORT;
  FUZZ_EXPECT(i < HOST_PORTS && i % HOST_INSTANCES == queue && nic->ports[i]);
  nic->ports[i] = false;
  host->ports_taken--;
}

static bool has_carrier(struct harp_port *port)
{
  return host->now >= nic_of(port)->unplugged_until;
}

static int reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us) { return 0; }

static void count(struct harp_port *port, unsigned queue, uint64_t *counters) {}

static const struct harp_port_ops port_ops = {
    .scheme = "fuzz",
    .receive = receive,
    .transmit = transmit,
    .flush = flush,
    .reserve = reserve,
    .release = release,
    .reclaim = reclaim,
    .has_carrier = has_carrier,
    .count = count,
};

/* --- Engines (replaces harp/engine/engine.c and nics.c: instances poll only on request) --- */

static struct harp_port *port_create(unsigned nic)
{
  struct nic_port *created = calloc(1, sizeof *created);
  struct harp_port *port = &created->port;
  created->nic = nic;
  port->ops = &port_ops;
  port->info.mtu = 1500;
  port->info.offloads = host->setup->offloads;
  port->info.max_frame = 65536;
  port->info.address = HOST_NIC_ADDRESS(host->setup->address, nic);
  port->info.prefix = 24;
  return port;
}

static struct harp_instance *instance_create(const struct harp_engine *engine, unsigned queue)
{
  struct harp_instance *instance;
  struct harp_instance_config config = {.port = engine->port,
                                        .config = &engine->config,
                                        .queue = queue,
                                        .cpu = -1,
                                        .callers_poll = host->setup->callers_poll};
  harp_stack_config_default(&config.stack);
  config.stack.address = engine->port->info.address;
  config.stack.max_connections = host->setup->max_connections;
  config.stack.packets = host->setup->packets;
  config.stack.rcvbuf = host->setup->rcvbuf;
  FUZZ_EXPECT(harp_instance_create(&instance, &config) == 0);
  instance->trace.mask = TRACE - 1;
  return instance;
}

/* Creates only the table of flows. */
static void statistics_create(struct harp_statfile *file)
{
  struct harp_stat_header *header =
      calloc(1, sizeof *header + HARP_STAT_FLOWS * sizeof(struct harp_stat_flow));
  header->flow_offset = sizeof *header;
  file->map = header;
}

static struct harp_engine *engine_create(unsigned nic)
{
  struct harp_engine *engine = calloc(1, sizeof *engine);
  pthread_mutex_init(&engine->ports_lock, NULL);
  harp_regions_init(&engine->regions);
  engine->config.timeout_ms = host->setup->timeout_ms;
  engine->config.rto_min_us = 5000;
  engine->config.flows = host->setup->flows;
  snprintf(engine->config.device, sizeof engine->config.device, "nic%u", nic);
  snprintf(engine->config.stripe, sizeof engine->config.stripe, "%s",
           host->setup->stripe ? "all" : "");
  engine->port = port_create(nic);
  statistics_create(&engine->statfile);
  return engine;
}

/* The first NIC is home. */
int harp_nics_open(struct harp_nics *nics, char *error)
{
  memset(nics, 0, sizeof *nics);
  for (unsigned i = 0; i < nic_count(); i++) {
    nics->engines[i] = engines[i] = engine_create(i);
  }
  nics->claims.devices.count = nics->claims.count = nic_count();
  return harp_engine_start(engines[0], error);
}

int harp_engine_start(struct harp_engine *of, char *error)
{
  for (unsigned i = 0; i < host->setup->instances; i++) {
    of->instances[i] = instance_create(of, i);
    of->instance_count++;
  }
  return 0;
}

bool harp_engine_on_link(const struct harp_engine *of, uint32_t address) { return true; }

bool harp_engine_reaches(const struct harp_engine *of, uint32_t address) { return true; }

bool harp_engine_link_up(const struct harp_engine *of)
{
  return !harp_instance_link_down(of->instances[0]) && harp_port_has_carrier(of->port);
}

int harp_engine_reserve(struct harp_engine *of, unsigned instance, uint16_t wanted, uint16_t *out)
{
  return of->port->ops->reserve(of->port, instance, wanted, out);
}

int harp_engine_try_reserve(struct harp_engine *of, unsigned instance, uint16_t wanted,
                            uint16_t *out)
{
  return harp_engine_reserve(of, instance, wanted, out);
}

void harp_engine_release(struct harp_engine *of, unsigned instance, uint16_t port)
{
  of->port->ops->release(of->port, instance, port);
}

/* The first failed link requests a dump; nothing is written here. */
void harp_engine_dump(struct harp_engine *of, const char *reason) {}

void harp_engine_unpublish(const struct harp_engine *of) {}

static void engine_close(struct harp_engine *of)
{
  for (unsigned i = 0; i < of->instance_count; i++) {
    harp_instance_destroy(of->instances[i]);
    hand_back(&host->queues[queue_number(of->port, i)]);
  }
  harp_regions_clear(&of->regions);
  pthread_mutex_destroy(&of->ports_lock);
  free(of->statfile.map);
  free(of->port);
  free(of);
}

void harp_nics_close(struct harp_nics *nics)
{
  for (unsigned i = 0; i < nic_count(); i++) {
    engine_close(nics->engines[i]);
  }
}

void harp_nics_forget(struct harp_nics *nics) {}

/* --- Calls for inputs --- */

static void write_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                      const char *format, ...)
{}

struct host *host_create(const struct host_setup *setup, uint64_t now,
                         void (*on_transmit)(unsigned queue, const struct harp_tx_frame *frame))
{
  int error;
  host = calloc(1, sizeof *host);
  host->setup = setup;
  host->now = now;
  host->on_transmit = on_transmit;
  FUZZ_EXPECT(net_init(write_log, &host->context) == 0);
  host->transport = transport_get(&error);
  return host;
}

void host_destroy(void)
{
  for (unsigned i = 0; i < HOST_QUEUES; i++) {
    struct host_queue *queue = &host->queues[i];
    while (queue->waiting_count > 0) {
      free(queue->waiting[--queue->waiting_count]);
    }
  }
  free(host);
  host = NULL;
}

static unsigned queue_count(void) { return nic_count() * host->setup->instances; }

/* Polls until the port's frames are taken: the remote counts the bytes that a connection has
 * received, and an instance may leave frames in its port for some polls. */
void host_poll(void)
{
  for (unsigned i = 0; i < queue_count(); i++) {
    struct harp_instance *instance = host_instance(i);
    bool again = instance != NULL;
    while (again) {
      harp_instance_poll(instance, NULL);
      again = instance->receive_postponed && host->queues[i].waiting_count > 0;
    }
  }
}

static void go_to(uint64_t when)
{
  host->now = HARP_MAX(when, host->now + 1);
  host_poll();
}

static uint64_t first_deadline(void)
{
  uint64_t first = UINT64_MAX;
  for (unsigned i = 0; i < queue_count(); i++) {
    first = host_instance(i) ? HARP_MIN(first, harp_instance_deadline(host_instance(i))) : first;
  }
  return first;
}

void host_advance(uint64_t most) { go_to(HARP_MIN(host->now + most, first_deadline())); }

void host_sleep(uint64_t least)
{
  uint64_t next = first_deadline();
  host->now = HARP_MAX(host->now + least, next == UINT64_MAX ? 0 : next);
}

void host_rest(void)
{
  uint64_t next = host->now + REST_NS;
  for (unsigned i = 0; i < queue_count(); i++) {
    next = host_instance(i) ? HARP_MIN(next, harp_stack_next_deadline(host_stack(i))) : next;
  }
  go_to(next);
}

struct host_frame *host_frame(unsigned queue, uint32_t header_length, uint32_t payload_length)
{
  struct host_queue *to = &host->queues[queue];
  uint32_t length = header_length + payload_length;
  struct host_frame *frame = to->waiting_count < HOST_FRAMES ? malloc(sizeof *frame + length)
                                                             : NULL;
  if (frame) {
    frame->length = length;
    frame->header_length = header_length;
    frame->segment_size = 0;
    to->waiting[to->waiting_count++] = frame;
  }
  return frame;
}

struct harp_instance *host_instance(unsigned queue)
{
  return engines[queue / host->setup->instances]->instances[queue % host->setup->instances];
}

struct harp_stack *host_stack(unsigned queue) { return host_instance(queue)->stack; }
