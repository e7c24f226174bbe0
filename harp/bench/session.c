/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/session.h"

#include <linux/mman.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "harp/bench/clock.h"
#include "harp/bench/signals.h"

enum { HUGE_PAGE = 2 << 20 };

static int said_rank;
static bool say_info;
static int said_flows; /* TCP connections per link, from HARP's log line; 0: unknown */

/* HARP's log line at init contains "N flows per link". It is the value in force, whatever its
 * source. */
static void hear_flows(const char *text)
{
  const char *at = strstr(text, " per link; ");
  int flows;
  while (at && at > text && *at != ',')
    at--;
  if (strncmp(text, "HARP ", 5) == 0 && at && sscanf(at, ", %d flow", &flows) == 1)
    said_flows = flows;
}

/* The logger that the plugin gets as NCCL's. */
static void log_line(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

static void log_line(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                     const char *format, ...)
{
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  hear_flows(text);
  if (level > NCCL_LOG_WARN && !say_info)
    return;
  fprintf(stderr, "[%d] NCCL %s %s\n", said_rank, level <= NCCL_LOG_WARN ? "WARN" : "INFO", text);
}

void session_say(const struct session *session, const char *format, ...)
{
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  fprintf(stderr, "harp perf: rank %d: %s\n", session->options->rank, text);
}

static int failed(const struct session *session, const char *call, ncclResult_t result)
{
  session_say(session, "%s of %s v%d: %s", call, session->api.name, session->api.version,
              netapi_result_name(result));
  return -1;
}

/* Plugins take settings only from the environment. */
static void plugin_settings(const struct options *options)
{
  char number[16];
  if (options->flows) {
    snprintf(number, sizeof(number), "%d", options->flows);
    setenv("HARP_FLOWS", number, 1);
  }
  if (options->nsocks) {
    snprintf(number, sizeof(number), "%d", options->nsocks);
    setenv("HARP_KERNEL_NSOCKS", number, 1);
  }
  if (options->kernel_cc)
    setenv("HARP_KERNEL_CC", options->kernel_cc, 1);
}

static int bring_up(struct session *session)
{
  int devices = 0;
  ncclResult_t result = session->api.init(log_line);
  if (result == ncclSuccess)
    result = session->api.devices(&devices);
  if (result != ncclSuccess || devices < 1) {
    session_say(session,
                "%s v%d declines: init: %s, %d devices; NCCL would go on to its next "
                "transport",
                session->api.name, session->api.version, netapi_result_name(result), devices);
    return -1;
  }
  session->flows = said_flows;
  result = session->api.device_name(0, &session->device);
  return result == ncclSuccess ? 0 : failed(session, "getProperties", result);
}

int session_open(struct session *session, const struct options *options)
{
  char error[NETAPI_ERROR];
  *session = (struct session){
      .options = options,
      .operation = operation_find(options->op),
      .lock = PTHREAD_MUTEX_INITIALIZER,
      .changed = PTHREAD_COND_INITIALIZER,
  };
  said_rank = options->rank;
  say_info = options->debug;
  plugin_settings(options);
  if (netapi_open(&session->api, options->plugin, options->api, error)) {
    session_say(session, "%s", error);
    return -1;
  }
  session->step = options->step ? options->step : session->operation->step;
  session->outstanding = options->outstanding ? options->outstanding
                                              : session->operation->outstanding;
  if (session->outstanding > (unsigned)session->api.max_requests) {
    session_say(session, "--outstanding %u: version %d of the interface allows %d at most",
                session->outstanding, session->api.version, session->api.max_requests);
    return -1;
  }
  return bring_up(session);
}

int session_exchange(struct session *session, const void *mine, size_t size)
{
  if (rendezvous_exchange(session->meeting, mine, size, session->everybody) == 0)
    return 0;
  session_say(session, "%s", rendezvous_error(session->meeting));
  return -1;
}

static int meet(struct session *session)
{
  const struct options *options = session->options;
  session->meeting = rendezvous_new(options->rank, options->ranks, options->timeout_ms);
  session->everybody = malloc((size_t)options->ranks * SESSION_LARGEST_EXCHANGE);
  if (!session->meeting || !session->everybody) {
    session_say(session, "there is no memory for %d ranks", options->ranks);
    return -1;
  }
  if (rendezvous_open(session->meeting, options->host, options->port)) {
    session_say(session, "%s", rendezvous_error(session->meeting));
    return -1;
  }
  return 0;
}

/* The neighbours on the ring: this rank sends to its successor and receives from its
 * predecessor. */
static int successor(const struct session *session)
{
  return (session->options->rank + 1) % session->options->ranks;
}

static bool sends(const struct session *session)
{
  return session->operation->sends(session->options->rank);
}

static bool receives(const struct session *session)
{
  return session->operation->receives(session->options->rank);
}

static int make_comms(struct session *session, void *handle)
{
  struct timespec pause = {.tv_nsec = 50 * 1000};
  uint64_t limit = clock_ns() + (uint64_t)session->options->timeout_ms * 1000000;
  bool connecting = sends(session), accepting = receives(session);
  while (connecting || accepting) {
    ncclResult_t result = ncclSuccess;
    if (connecting)
      result = session->api.connect(0, handle, &session->send_comm);
    if (result != ncclSuccess)
      return failed(session, "connect", result);
    connecting = connecting && !session->send_comm;
    if (accepting)
      result = session->api.accept(session->listener, &session->receive_comm);
    if (result != ncclSuccess)
      return failed(session, "accept", result);
    accepting = accepting && !session->receive_comm;
    if (clock_ns() > limit) {
      session_say(session, "%s did not complete within --timeout",
                  connecting ? "connect" : "accept");
      return -1;
    }
    nanosleep(&pause, NULL);
  }
  return 0;
}

static int connect_ring(struct session *session)
{
  char handle[SESSION_LARGEST_EXCHANGE] = {0};
  size_t size = session->api.handle_size;
  if (receives(session)) {
    ncclResult_t result = session->api.listen(0, handle, &session->listener);
    if (result != ncclSuccess)
      return failed(session, "listen", result);
  }
  if (session_exchange(session, handle, size))
    return -1;
  memcpy(handle, (char *)session->everybody + (size_t)successor(session) * size, size);
  return make_comms(session, handle);
}

static int register_region(struct session *session, struct region *region)
{
  ncclResult_t result = ncclSuccess;
  if (session->send_comm)
    result = session->api.register_memory(session->send_comm, region->data, region->size,
                                          &region->send_mhandle);
  if (result == ncclSuccess && session->receive_comm)
    result = session->api.register_memory(session->receive_comm, region->data, region->size,
                                          &region->receive_mhandle);
  return result == ncclSuccess ? 0 : failed(session, "regMr", result);
}

/* Returns zeroed memory for messages; *size becomes its real size. NULL: out of memory. */
static void *map_region(const struct session *session, size_t *size)
{
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
  if (session->options->hugepages) {
    flags |= MAP_HUGETLB | MAP_HUGE_2MB;
    *size = (*size + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
  }
  void *data = mmap(NULL, *size, PROT_READ | PROT_WRITE, flags, -1, 0);
  return data == MAP_FAILED ? NULL : data;
}

static int make_regions(struct session *session)
{
  size_t sizes[OPERATION_REGIONS] = {0};
  struct pass shape;
  session_prepare(session, &shape, session->options->max_size);
  session->operation->sizes(&shape, session->options->max_size, sizes);
  for (int i = 0; i < OPERATION_REGIONS; i++) {
    if (!sizes[i])
      continue;
    void *data = map_region(session, &sizes[i]);
    if (!data) {
      session_say(session, "there is no memory for messages of %zu bytes: lower -e%s",
                  session->options->max_size,
                  session->options->hugepages
                      ? ", or set hugepages of 2 MiB aside (sysctl vm.nr_hugepages)"
                      : "");
      return -1;
    }
    session->regions[i] = (struct region){.data = data, .size = sizes[i]};
    if (register_region(session, &session->regions[i]))
      return -1;
  }
  return 0;
}

static int run_pass(struct pass *pass)
{
  if (pass->operation->begin(pass)) {
    snprintf(pass->pump.failure, sizeof(pass->pump.failure), "no memory for the plan of the pass");
    return -1;
  }
  return pump_run(&pass->pump);
}

static void *progress_main(void *argument)
{
  struct session *session = argument;
  pthread_mutex_lock(&session->lock);
  for (;;) {
    while (!session->job && !session->stop)
      pthread_cond_wait(&session->changed, &session->lock);
    if (session->stop)
      break;
    struct pass *pass = session->job;
    pthread_mutex_unlock(&session->lock);
    int outcome = run_pass(pass);
    pthread_mutex_lock(&session->lock);
    session->outcome = outcome;
    session->job = NULL;
    pthread_cond_broadcast(&session->changed);
  }
  pthread_mutex_unlock(&session->lock);
  return NULL;
}

int session_connect(struct session *session)
{
  if (meet(session) || connect_ring(session) || make_regions(session))
    return -1;
  if (pthread_create(&session->progress, NULL, progress_main, session)) {
    session_say(session, "the progress thread cannot be started");
    return -1;
  }
  session->progress_runs = true;
  return 0;
}

void session_prepare(const struct session *session, struct pass *pass, size_t size)
{
  const struct options *options = session->options;
  *pass = (struct pass){
      .operation = session->operation,
      .rank = options->rank,
      .ranks = options->ranks,
      .size = size,
      .step = session->step,
      .outstanding = session->outstanding,
      .iterations = options->iterations,
      .pause_ms = (unsigned)options->pause_ms,
      .regions = (struct region *)(uintptr_t)session->regions,
      .pump =
          {
              .api = &session->api,
              .callbacks = &session->operation->callbacks,
              .send = {.verb = "isend", .comm = session->send_comm},
              .receive = {.verb = "irecv", .comm = session->receive_comm},
              .outstanding = session->outstanding,
              .timeout_ns = (uint64_t)options->timeout_ms * 1000000,
              .bytes_per_ns = options->rate_gbit / 8,
          },
  };
}

int session_run(struct session *session, struct pass *pass)
{
  pass->pump.user = pass;
  signals_await_stop(true);
  pthread_mutex_lock(&session->lock);
  session->job = pass;
  pthread_cond_broadcast(&session->changed);
  while (session->job)
    pthread_cond_wait(&session->changed, &session->lock);
  int outcome = session->outcome;
  pthread_mutex_unlock(&session->lock);
  signals_await_stop(false);
  if (outcome)
    session_say(session, "%zu bytes: %s", pass->size, pass->pump.failure);
  if (outcome && pass->verify)
    session_say(session, "%llu messages had come before that, with %llu wrong elements",
                (unsigned long long)pass->pump.receive.done, (unsigned long long)pass->wrong);
  pass->operation->finish(pass);
  return outcome;
}

static void stop_progress(struct session *session)
{
  if (!session->progress_runs)
    return;
  pthread_mutex_lock(&session->lock);
  session->stop = true;
  pthread_cond_broadcast(&session->changed);
  pthread_mutex_unlock(&session->lock);
  pthread_join(session->progress, NULL);
}

static void free_region(struct session *session, struct region *region)
{
  if (region->send_mhandle)
    session->api.deregister_memory(session->send_comm, region->send_mhandle);
  if (region->receive_mhandle)
    session->api.deregister_memory(session->receive_comm, region->receive_mhandle);
  if (region->data)
    munmap(region->data, region->size);
}

void session_close(struct session *session)
{
  stop_progress(session);
  for (int i = 0; i < OPERATION_REGIONS; i++)
    free_region(session, &session->regions[i]);
  if (session->send_comm)
    session->api.close_send(session->send_comm);
  if (session->receive_comm)
    session->api.close_receive(session->receive_comm);
  if (session->listener)
    session->api.close_listener(session->listener);
  if (session->device)
    session->api.finalize();
  if (session->meeting)
    rendezvous_close(session->meeting);
  free(session->everybody);
}
