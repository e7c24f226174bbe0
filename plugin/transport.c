/* SPDX-License-Identifier: Apache-2.0 */
/* The process: init and finalize, the device, the logger, fork and exit. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "harp/engine/clock.h"
#include "harp/engine/dump.h"
#include "harp/engine/log.h"
#include "harp/engine/variables.h"
#include "plugin/contexts.h"
#include "plugin/link/link.h"

enum {
  MAX_COMMS = HARP_ENGINE_CONNECTIONS, /* links of one flow each */
  DEVICE_GUID = 0x50524148,            /* arbitrary, but equal on every rank */
  HELLO_TIMEOUT_MS = 5000,             /* time for an unauthenticated peer's hello */
  LINGER_MS = 1000,                    /* finalize and exit: limit for the last acknowledgements */
  FIN_WAIT_MS = 100,                   /* finalize and exit: limit for the peers' FINs */
  ECHO_MS = 5,                         /* finalize and exit: wait for the peers' retransmissions */
  TRACE_MS = 2000,                     /* finalize and exit: limit for writing a trace */
  RETIRED_MS = 2000,                   /* delay before a used local port is released */
};

const char net_name[] = "HARP";

/* The process-wide state of the plugin. */
static struct {
  pthread_mutex_t lock;
  unsigned users; /* calls of init minus calls of finalize */
  struct net_contexts contexts;
  struct transport *_Atomic transport;
  ncclDebugLogger_t _Atomic logger;
  atomic_bool forked;
  bool handlers; /* the atfork and atexit handlers are registered */
  bool told;     /* unknown HARP_ variables were logged */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Log --- */

static void speak(enum harp_log_level level, const char *line, void *user)
{
  ncclDebugLogger_t logger = atomic_load(&registry.logger);
  if (logger) {
    logger(level == HARP_LOG_WARN ? NCCL_LOG_WARN : NCCL_LOG_INFO, NCCL_NET | NCCL_INIT, __FILE__,
           __LINE__, "%s", line);
  }
}

enum trace_request { TRACE_NONE, TRACE_PENDING, TRACE_REQUESTED, TRACE_WRITTEN };

void transport_request_trace(struct transport *transport, const char *reason)
{
  int none = TRACE_NONE;
  if (atomic_compare_exchange_strong(&transport->trace_wanted, &none, TRACE_PENDING)) {
    snprintf(transport->trace_reason, sizeof transport->trace_reason, "%s", reason);
    atomic_store(&transport->trace_wanted, TRACE_REQUESTED);
  }
}

void transport_drain_log(void)
{
  struct transport *transport = atomic_load_explicit(&registry.transport, memory_order_relaxed);
  int asked = TRACE_REQUESTED;
  if (transport && atomic_load_explicit(&transport->trace_wanted, memory_order_relaxed) == asked &&
      atomic_compare_exchange_strong(&transport->trace_wanted, &asked, TRACE_WRITTEN)) {
    harp_engine_dump(transport->engine, transport->trace_reason);
  }
  harp_log_drain(speak, NULL);
}

int transport_forked(void)
{
  return atomic_load_explicit(&registry.forked, memory_order_relaxed) ? -EPERM : 0;
}

/* --- Used local ports --- */

struct retired_port {
  struct retired_port *next;
  uint64_t since; /* ns */
  uint16_t port;
};

void transport_retire_port(struct transport *transport, struct harp_instance *instance,
                           uint16_t port)
{
  struct transport_instance *part = &transport->parts[instance->queue];
  struct retired_port *retired = malloc(sizeof *retired);
  if (!retired) {
    harp_engine_release(transport->engine, instance->queue, port);
    return;
  }
  *retired = (struct retired_port){part->retired, instance->now, port};
  part->retired = retired;
}

static void release_retired(struct transport_instance *part, struct harp_instance *instance,
                            uint64_t least_age)
{
  struct retired_port **at = &part->retired;
  while (*at) {
    struct retired_port *retired = *at;
    if (instance->now - retired->since < least_age) {
      at = &retired->next;
      continue;
    }
    *at = retired->next;
    harp_engine_release(part->transport->engine, instance->queue, retired->port);
    free(retired);
  }
}

/* --- The tick of each instance --- */

/* The time for an unauthenticated peer's hello, ms. A peer that has shown the token gets at least
 * timeout_ms to prove the key, since its process may be stopped meanwhile. */
static uint64_t hello_timeout_ms(const struct link_flow *flow)
{
  uint32_t timeout = flow->transport->engine->config.timeout_ms;
  return flow->proof.challenged && timeout > HELLO_TIMEOUT_MS ? timeout : HELLO_TIMEOUT_MS;
}

static void tick(struct harp_ticker *ticker, struct harp_instance *instance, uint64_t now)
{
  struct transport_instance *part = (struct transport_instance *)ticker;
  uint64_t links = 0;
  struct link_flow *next;
  release_retired(part, instance, RETIRED_MS * 1000000ull);
  uint64_t running = harp_instance_running_time(instance);
  for (struct link_flow *flow = part->flows; flow; flow = next) {
    next = flow->next;
    flow_publish(flow);
    flow_watch(flow, now);
    flow_watch_peer(flow, now);
    link_watch_opening(flow);
    links += flow->link && flow->number == 0;
    if (flow->listener && running - flow->born > hello_timeout_ms(flow) * 1000000ull) {
      instance->counters[HARP_COUNTER_strangers]++;
      flow_end(flow, false);
    }
  }
  instance->counters[HARP_COUNTER_links] = links;
  instance->counters[HARP_COUNTER_log_lines_dropped] = harp_log_dropped();
}

static void start_ticking(struct harp_instance *instance, void *argument)
{
  struct transport *transport = argument;
  struct transport_instance *part = &transport->parts[instance->queue];
  part->transport = transport;
  part->ticker.tick = tick;
  harp_instance_add_ticker(instance, &part->ticker);
}

/* --- Open and close --- */

static int read_key(struct transport *transport, char *error)
{
  const char *path = getenv("HARP_KEY_FILE");
  if (!path || !path[0]) {
    return 0;
  }
  int result = proof_key_read(&transport->key, path, error);
  if (transport->key.loose) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: HARP_KEY_FILE %s: every user of this host may read or "
                  "change it; chmod 600 it",
                  path);
  }
  return result;
}

/* The transport; or NULL, with a negative errno in *why and a line for the log in error. */
static struct transport *open_transport(int *why, char *error)
{
  struct transport *transport = calloc(1, sizeof *transport);
  if (!transport) {
    snprintf(error, HARP_ENGINE_ERROR_SIZE, "no memory");
    *why = -ENOMEM;
    return NULL;
  }
  pthread_mutex_init(&transport->lock, NULL);
  const char *checksum = getenv("HARP_CHECKSUM");
  transport->checksum = checksum && checksum[0] && strcmp(checksum, "0") != 0;
  int result = read_key(transport, error);
  if (result == 0) {
    result = harp_engine_open(&transport->engine, error);
  }
  for (unsigned i = 0; result == 0 && i < transport->engine->instance_count; i++) {
    result = harp_instance_call(transport->engine->instances[i], start_ticking, transport,
                                LINK_CLOSE_MS);
    if (result != 0) {
      snprintf(error, HARP_ENGINE_ERROR_SIZE, "worker %u does not answer", i);
      harp_engine_close(transport->engine);
    }
  }
  if (result != 0) {
    proof_key_forget(&transport->key);
    free(transport);
    *why = result;
    return NULL;
  }
  return transport;
}

struct lingering {
  struct transport *transport;
  unsigned owed; /* flows with bytes that the peer may still need */
  unsigned open; /* flows with a connection that is not closed on both sides */
};

static void count_lingering(struct harp_instance *instance, void *argument)
{
  struct lingering *lingering = argument;
  const struct link_flow *flow = lingering->transport->parts[instance->queue].flows;
  for (; flow; flow = flow->next) {
    lingering->owed += !flow_drained(flow);
    lingering->open += flow->tcp != NULL;
  }
}

/* The end of a finished job must not become an error on the peer. So this waits, with a limit,
 * while the workers answer: until all bytes are acknowledged, and a little longer for the peer's
 * FIN, which the kernel would answer with a reset. */
static void linger(struct transport *transport)
{
  struct harp_run_time waited = {0};
  for (;;) {
    struct lingering lingering = {.transport = transport};
    for (unsigned i = 0; i < transport->engine->instance_count; i++) {
      harp_instance_call(transport->engine->instances[i], count_lingering, &lingering, 100);
    }
    uint64_t bound = lingering.owed ? LINGER_MS : lingering.open ? FIN_WAIT_MS : 0;
    if (harp_ran_ns(&waited) >= bound * 1000000ull) {
      break;
    }
    harp_sleep_us(500);
  }
  harp_sleep_us(ECHO_MS * 1000);
}

static void close_links(struct transport *transport)
{
  while (transport->links) {
    struct net_link *link = transport->links;
    transport_remove_link(transport, link);
    link_destroy(link);
  }
}

static void forget_flows(struct harp_instance *instance, void *argument)
{
  struct transport *transport = argument;
  struct transport_instance *part = &transport->parts[instance->queue];
  while (part->flows) {
    flow_leave(part->flows);
  }
  release_retired(part, instance, 0);
}

static void close_transport(struct transport *transport)
{
  close_links(transport);
  linger(transport);
  for (unsigned i = 0; i < transport->engine->instance_count; i++) {
    harp_instance_call(transport->engine->instances[i], forget_flows, transport, LINK_CLOSE_MS);
  }
  harp_engine_close(transport->engine);
  harp_dump_wait(TRACE_MS);
  pthread_mutex_destroy(&transport->lock);
  proof_key_forget(&transport->key);
  free(transport);
}

/* --- Fork and exit --- */

static void in_child(void)
{
  struct transport *transport = atomic_load(&registry.transport);
  atomic_store(&registry.forked, transport != NULL);
  if (transport) {
    harp_engine_forget(transport->engine);
    harp_log_forget();
  }
}

/* At exit without finalize. The application's threads may still use HARP, so nothing is freed. Idle
 * links are closed with FIN, others with RST. */
static void at_exit(void)
{
  struct transport *transport = atomic_load(&registry.transport);
  if (!transport || atomic_load(&registry.forked)) {
    return;
  }
  atomic_store(&registry.logger, NULL);
  pthread_mutex_lock(&transport->lock); /* NCCL's threads may close links at the same time */
  for (struct net_link *link = transport->links; link; link = link->next) {
    link_detach(link);
  }
  pthread_mutex_unlock(&transport->lock);
  linger(transport);
  for (unsigned i = 0; i < transport->engine->instance_count; i++) {
    harp_instance_stop(transport->engine->instances[i]);
  }
  unlink(transport->engine->statfile.path);
  harp_dump_wait(TRACE_MS);
}

/* --- plugin/net.h --- */

struct transport *transport_get(int *error)
{
  struct transport *transport = atomic_load(&registry.transport);
  bool forked = atomic_load(&registry.forked);
  *error = forked ? -EPERM : transport ? 0 : -ENODEV;
  return *error ? NULL : transport;
}

void transport_add_link(struct transport *transport, struct net_link *link)
{
  pthread_mutex_lock(&transport->lock);
  link->next = transport->links;
  transport->links = link;
  pthread_mutex_unlock(&transport->lock);
}

void transport_remove_link(struct transport *transport, struct net_link *link)
{
  pthread_mutex_lock(&transport->lock);
  struct net_link **at = &transport->links;
  while (*at && *at != link) {
    at = &(*at)->next;
  }
  if (*at) {
    *at = link->next;
  }
  pthread_mutex_unlock(&transport->lock);
}

static void introduce(const struct harp_engine *engine)
{
  harp_log_post(HARP_LOG_INFO,
                "HARP " HARP_VERSION ": %s: %s; %u instance%s, %u flow%s per link; %s; "
                "all hosts of the job must use HARP, or none",
                engine->config.device, engine->port->info.summary, engine->instance_count,
                engine->instance_count == 1 ? "" : "s", engine->config.flows,
                engine->config.flows == 1 ? "" : "s", engine->config.path);
}

static void tell_unknown(const char *name, const char *nearest, void *user)
{
  harp_log_post(HARP_LOG_WARN,
                "HARP: nothing reads the variable %s%s%s%s harp env --defaults lists "
                "all variables",
                name, nearest ? "; is " : "", nearest ? nearest : "", nearest ? " meant?" : ";");
}

/* The transport that the user has selected with NCCL_NET; NULL: any. */
static const char *wanted_net(void)
{
  const char *name = getenv("NCCL_NET");
  return name && name[0] ? name : NULL;
}

/* Logs why HARP declines and what that means for the job. */
static void decline(int result, const char *error)
{
  const char *wanted = wanted_net();
  if (wanted) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: %s; NCCL_NET=%s allows no other transport, so the job fails", error,
                  wanted);
    return;
  }
  /* Turning HARP off is intended, so that is no warning. NCCL's error text comes from its socket
   * transport, which reads the first bytes of HARP's handle as an address family. */
  harp_log_post(
      result == -ECANCELED ? HARP_LOG_INFO : HARP_LOG_WARN,
      "HARP: %s; NCCL goes on without HARP. All hosts of the job must do the same, or the "
      "job fails (\"address with family 45640\")",
      error);
}

static int first_init(void)
{
  char error[HARP_ENGINE_ERROR_SIZE] = "";
  const char *wanted = wanted_net();
  if (wanted && strcasecmp(wanted, net_name) != 0) {
    /* NCCL initializes a transport before it compares the name, without regard to case. */
    harp_log_post(HARP_LOG_INFO, "HARP: NCCL_NET=%.64s asks for another transport", wanted);
    return -ECANCELED;
  }
  int result = 0;
  struct transport *transport = open_transport(&result, error);
  /* Without this warning, a misspelt setting looks like one that has no effect. */
  if (result != -ECANCELED && !registry.told) {
    registry.told = true;
    harp_variables_unknown(environ, tell_unknown, NULL);
  }
  if (!transport) {
    decline(result, error);
    /* -EINVAL means wrong use by NCCL; a wrong file is the user's mistake. */
    return result == -EINVAL ? -EBADF : result;
  }
  introduce(transport->engine);
  atomic_store(&registry.transport, transport);
  if (!registry.handlers) {
    registry.handlers = true;
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);
  }
  return 0;
}

/* Called with registry.lock. */
static int begin_communicator(void **context)
{
  int result = context ? contexts_add(&registry.contexts, context) : 0;
  if (result == 0 && !atomic_load(&registry.transport)) {
    result = first_init();
  }
  if (result == 0) {
    registry.users++;
  } else if (context && contexts_remove(&registry.contexts, *context)) {
    *context = NULL;
  }
  return result;
}

int net_init(ncclDebugLogger_t logger, void **context)
{
  if (atomic_load(&registry.forked)) {
    return -EPERM;
  }
  pthread_mutex_lock(&registry.lock);
  atomic_store(&registry.logger, logger);
  int result = begin_communicator(context);
  transport_drain_log();
  pthread_mutex_unlock(&registry.lock);
  return result;
}

/* Closes HARP after the last communicator has ended. Called with registry.lock. */
static void last_finalize(void)
{
  struct transport *transport = atomic_exchange(&registry.transport, NULL);
  close_transport(transport);
  transport_drain_log();
  atomic_store(&registry.logger, NULL); /* the logger may be unloaded next */
}

int net_finalize(void *context)
{
  if (!context || atomic_load(&registry.forked)) {
    return 0;
  }
  pthread_mutex_lock(&registry.lock);
  bool known = contexts_remove(&registry.contexts, context);
  if (known && --registry.users == 0) {
    last_finalize();
  }
  pthread_mutex_unlock(&registry.lock);
  return known ? 0 : -EINVAL;
}

int net_devices(int *count)
{
  int error;
  *count = transport_get(&error) ? 1 : 0;
  return error;
}

/* The properties are equal on every rank of a host, although each rank may use another NIC: NCCL up
 * to 2.21 fails or hangs if the ranks' views of their host differ. So no value here depends on this
 * process's NIC, and the device has no PCI path. */
int net_get_properties(int device, struct net_properties *properties)
{
  int error;
  const struct transport *transport = transport_get(&error);
  if (!transport || device != 0) {
    return transport ? -EINVAL : error;
  }
  *properties = (struct net_properties){
      .name = net_name,
      .pci_path = NULL,
      .guid = DEVICE_GUID,
      .speed_mbps = (int)transport->engine->claim.slowest_mbps,
      .port = 1,
      .max_comms = MAX_COMMS,
      .latency_us = 0,
  };
  return 0;
}
