/* SPDX-License-Identifier: Apache-2.0 */
/* The process: init and finalize, the logger, fork and exit. */
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
#include "harp/engine/thread.h"
#include "harp/engine/variables.h"
#include "harp/time_units.h"
#include "plugin/contexts.h"
#include "plugin/link/link.h"

enum {
  LINGER_MS = 1000,     /* finalize and exit: limit for the last acknowledgements */
  FIN_WAIT_MS = 100,    /* finalize and exit: limit for the peers' FINs */
  ECHO_MS = 5,          /* finalize and exit: wait for the peers' retransmissions */
  TRACE_MS = 2000,      /* finalize and exit: limit for writing a trace */
  FORK_WAIT_MS = 10000, /* longest wait of a fork for an init or a finalize */
  COUNT_MS = 100,       /* time for an instance to count its lingering flows */
};

const char net_name[] = "HARP";

/* The process-wide state of the plugin. */
static struct {
  pthread_mutex_t lock; /* recursive: a logger may fork during init */
  unsigned users;       /* calls of init minus calls of finalize */
  bool changes;         /* init or finalize is under way */
  struct net_contexts contexts;
  struct transport *_Atomic transport;
  ncclDebugLogger_t _Atomic logger;
  atomic_bool forked;
  bool has_atfork, has_atexit; /* the handlers are registered */
  bool told;                   /* unknown HARP_ variables were logged */
} registry = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

/* --- Log --- */

static void write_line(enum harp_log_level level, const char *line, void *user)
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

static void dump_all(const struct transport *transport)
{
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    harp_engine_dump(nic->engine, transport->trace_reason);
  }
}

void transport_start_nics(struct transport *transport)
{
  for (unsigned i = 0; i < transport->nics.claims.devices.count; i++) {
    if (transport->of_device[i]) {
      nic_start(transport->of_device[i]);
    }
  }
}

static void *start_all(void *argument)
{
  transport_start_nics(argument);
  return NULL;
}

void transport_want_nics(struct transport *transport)
{
  if (!atomic_load_explicit(&transport->starting, memory_order_relaxed) &&
      !atomic_exchange(&transport->starting, true) &&
      harp_thread_start(&transport->starter, start_all, transport, "harp-start") != 0) {
    atomic_store(&transport->starting, false); /* a later tick tries again */
  }
}

void transport_serve(void)
{
  struct transport *transport = atomic_load_explicit(&registry.transport, memory_order_relaxed);
  int requested = TRACE_REQUESTED;
  if (transport &&
      atomic_load_explicit(&transport->trace_wanted, memory_order_relaxed) == requested &&
      atomic_compare_exchange_strong(&transport->trace_wanted, &requested, TRACE_WRITTEN)) {
    dump_all(transport);
  }
  harp_log_drain(write_line, NULL);
}

bool transport_forked(void) { return atomic_load_explicit(&registry.forked, memory_order_relaxed); }

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

/* Creates the NICs of all engines. The engines that run begin to tick. */
static int create_nics(struct transport *transport, char *error)
{
  const struct harp_devices *devices = &transport->nics.claims.devices;
  for (unsigned i = 0; i < devices->count; i++) {
    snprintf(transport->names[i], sizeof transport->names[i], devices->one ? "%s" : "%s%u",
             net_name, i);
    if (!transport->nics.engines[i]) {
      continue;
    }
    struct transport_nic *nic = nic_create(transport, i);
    transport->of_device[i] = nic;
    transport->driven++;
    if (!nic) {
      snprintf(error, HARP_ENGINE_ERROR_SIZE, "no memory");
      return -ENOMEM;
    }
    if (nic_instances(nic) > 0) { /* the engine has started */
      int result = nic_begin(nic);
      if (result != 0) {
        snprintf(error, HARP_ENGINE_ERROR_SIZE, "a worker of device %u does not answer", i);
        return result;
      }
    }
  }
  transport->home = transport->of_device[transport->nics.home];
  return 0;
}

static void free_transport(struct transport *transport)
{
  harp_nics_close(&transport->nics);
  for (unsigned i = 0; i < HARP_DEVICES_MAX; i++) {
    free(transport->of_device[i]);
  }
  pthread_mutex_destroy(&transport->lock);
  pthread_mutex_destroy(&transport->start_lock);
  pthread_mutex_destroy(&transport->parts_lock);
  proof_key_forget(&transport->key);
  free(transport);
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
  pthread_mutex_init(&transport->start_lock, NULL);
  pthread_mutex_init(&transport->parts_lock, NULL);
  early_read_init(&transport->early_read);
  const char *checksum = getenv("HARP_CHECKSUM");
  transport->checksum = checksum && checksum[0] && strcmp(checksum, "0") != 0;
  int result = read_key(transport, error);
  if (result == 0) {
    result = harp_nics_open(&transport->nics, error);
  }
  if (result == 0) {
    result = create_nics(transport, error);
  }
  if (result != 0) {
    free_transport(transport);
    *why = result;
    return NULL;
  }
  return transport;
}

struct lingering {
  struct nic_instance *at;
  unsigned owed; /* flows with bytes that the peer may still need */
  unsigned open; /* flows with a connection that is not closed on both sides */
};

static void count_lingering(struct harp_instance *instance, void *argument)
{
  struct lingering *lingering = argument;
  for (const struct link_flow *flow = lingering->at->flows; flow; flow = flow->next) {
    lingering->owed += !flow_drained(flow);
    lingering->open += flow->tcp != NULL;
  }
}

static struct lingering count_all(struct transport *transport)
{
  struct lingering all = {0};
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    for (unsigned i = 0; i < nic_instances(nic); i++) {
      all.at = &nic->parts[i];
      harp_instance_call(all.at->instance, count_lingering, &all, COUNT_MS);
    }
  }
  return all;
}

/* The end of a finished job must not become an error on the peer. So this waits until all bytes are
 * acknowledged, and a little longer for the peer's FIN, because the kernel would answer a later FIN
 * with a reset. Both waits have limits, and the workers still answer meanwhile. */
static void linger(struct transport *transport)
{
  struct harp_run_time waited = {0};
  for (;;) {
    struct lingering lingering = count_all(transport);
    uint64_t bound = lingering.owed ? LINGER_MS : lingering.open ? FIN_WAIT_MS : 0;
    if (harp_ran_ns(&waited) >= bound * NS_PER_MS) {
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

/* Waits until no NIC is being started. */
static void await_starter(struct transport *transport)
{
  if (atomic_load(&transport->starting) && !atomic_exchange(&transport->starter_joined, true)) {
    pthread_join(transport->starter, NULL);
  }
}

static void close_transport(struct transport *transport)
{
  close_links(transport); /* no flow is left that could want NICs */
  await_starter(transport);
  linger(transport);
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    nic_drop_flows(nic);
  }
  harp_dump_wait(TRACE_MS);
  free_transport(transport);
}

/* --- Fork and exit --- */

/* A fork waits for an init or a finalize, because the child cannot close what is half open. The
 * limit ends a deadlock: the forking thread may hold a lock that the logger of the init wants. */
static void before_fork(void)
{
  struct harp_run_time waited = {0};
  while (pthread_mutex_trylock(&registry.lock) != 0 &&
         harp_ran_ns(&waited) < FORK_WAIT_MS * NS_PER_MS) {
    harp_sleep_us(500);
  }
}

/* Does nothing if before_fork has come to its limit: another thread has the lock then. */
static void after_fork(void) { pthread_mutex_unlock(&registry.lock); }

static void in_child(void)
{
  struct transport *transport = atomic_load(&registry.transport);
  /* The lock knows its owner by a thread id, which has changed. */
  registry.lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  harp_log_forget();
  bool again = atomic_exchange(&registry.forked, transport || registry.changes);
  if (transport && !again) { /* a child's child has other files under the numbers of HARP's */
    harp_nics_forget(&transport->nics);
  }
}

/* Each link would wait for an instance that nobody polls any more. */
static void forsake_silent(const struct transport *transport)
{
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    for (unsigned i = 0; i < nic_instances(nic); i++) {
      harp_instance_forsake_if_silent(nic->parts[i].instance, HARP_INSTANCE_CALL_MS);
    }
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
  forsake_silent(transport);
  pthread_mutex_lock(&transport->lock); /* NCCL's threads may close links at the same time */
  for (struct net_link *link = transport->links; link; link = link->next) {
    link_detach(link);
  }
  pthread_mutex_unlock(&transport->lock);
  await_starter(transport);
  linger(transport);
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    for (unsigned i = 0; i < nic_instances(nic); i++) {
      harp_instance_stop(nic->engine->instances[i]);
    }
    harp_engine_unpublish(nic->engine);
  }
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

static void introduce(const struct transport *transport)
{
  unsigned count = transport->nics.claims.devices.count;
  for (struct transport_nic *nic = nic_next(transport, NULL); nic; nic = nic_next(transport, nic)) {
    nic_introduce(nic);
  }
  if (count > 1) {
    harp_log_post(HARP_LOG_INFO,
                  "HARP: this rank drives %u of the host's %u NICs, its home is device %u; all "
                  "hosts of the job must use HARP, or none",
                  transport->driven, count, transport->home->device);
  }
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
  if (!registry.has_atfork) {
    registry.has_atfork = pthread_atfork(before_fork, after_fork, in_child) == 0;
  }
  int result = 0;
  struct transport *transport = open_transport(&result, error);
  /* A misspelt setting looks like one that has no effect without this warning. */
  if (result != -ECANCELED && !registry.told) {
    registry.told = true;
    harp_variables_unknown(environ, tell_unknown, NULL);
  }
  if (!transport) {
    decline(result, error);
    /* -EINVAL means wrong use by NCCL; a wrong file is the user's mistake. */
    return result == -EINVAL ? -EBADF : result;
  }
  introduce(transport);
  atomic_store(&registry.transport, transport);
  if (!registry.has_atexit) {
    registry.has_atexit = atexit(at_exit) == 0;
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
  registry.changes = true;
  atomic_store(&registry.logger, logger);
  int result = begin_communicator(context);
  transport_serve();
  registry.changes = false;
  pthread_mutex_unlock(&registry.lock);
  return result;
}

/* Closes HARP after the last communicator has ended. Called with registry.lock. */
static void last_finalize(void)
{
  struct transport *transport = atomic_exchange(&registry.transport, NULL);
  close_transport(transport);
  transport_serve();
  atomic_store(&registry.logger, NULL); /* the logger may be unloaded next */
}

int net_finalize(void *context)
{
  if (!context || atomic_load(&registry.forked)) {
    return 0;
  }
  pthread_mutex_lock(&registry.lock);
  registry.changes = true;
  bool known = contexts_remove(&registry.contexts, context);
  if (known && --registry.users == 0) {
    last_finalize();
  }
  registry.changes = false;
  pthread_mutex_unlock(&registry.lock);
  return known ? 0 : -EINVAL;
}
