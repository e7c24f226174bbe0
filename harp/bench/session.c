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

enum {
  HUGE_PAGE = 2 << 20,
  LAST_LINES_MS = 200, /* time for a plugin to log why it has failed */
  LAST_LINES_STEP_MS = 20,
};

#define LAST_WORDS_NS 1000000000u /* for a plugin to fail after another rank has left */

static int log_rank;
static bool log_info;
static bool warned;      /* the plugin has logged a warning */
static int flows_in_log; /* TCP connections per link, from HARP's log line; 0: unknown */

/* HARP's log line at init contains "N flows per link". It is the value in force, whatever its
 * source. */
static void read_flows(const char *text)
{
  const char *at = strstr(text, " per link; ");
  int flows;
  while (at && at > text && *at != ',') {
    at--;
  }
  if (strncmp(text, "HARP ", 5) == 0 && at && sscanf(at, ", %d flow", &flows) == 1) {
    flows_in_log = flows;
  }
}

/* Sockets per link and congestion control of the kernel plugin, from its log line at init. */
static struct {
  int sockets;         /* 0: unknown */
  char congestion[32]; /* "": unknown, or the system's */
} kernel_in_log;

static void read_kernel(const char *text)
{
  static const char from[] = " sockets per link, congestion control ";
  const char *at = strstr(text, from);
  if (strncmp(text, "NET/KERNEL: ", 12) != 0 || !at) {
    return;
  }
  const char *name = at + strlen(from);
  while (at > text && *at != ',') {
    at--;
  }
  kernel_in_log.sockets = *at == ',' ? atoi(at + 1) : 0;
  if (strcmp(name, "of the system") != 0) {
    snprintf(kernel_in_log.congestion, sizeof(kernel_in_log.congestion), "%s", name);
  }
}

/* Whether the line names the file with a link's last events, which explains a failure. */
static bool names_trace(const char *text) { return strstr(text, "harp stat --trace") != NULL; }

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
  read_flows(text);
  read_kernel(text);
  warned = warned || level <= NCCL_LOG_WARN;
  if (level > NCCL_LOG_WARN && !log_info && !names_trace(text)) {
    return;
  }
  fprintf(stderr, "[%d] NCCL %s %s\n", log_rank, level <= NCCL_LOG_WARN ? "WARN" : "INFO", text);
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

static void set_number(const char *name, int value)
{
  char text[16];
  snprintf(text, sizeof(text), "%d", value);
  setenv(name, text, 1);
}

/* Plugins take settings only from the environment. Without a launcher, HARP's statistics learn the
 * rank from there, too. */
static void plugin_settings(const struct options *options)
{
  set_number("RANK", options->rank);
  set_number("WORLD_SIZE", options->ranks);
  if (options->flows) {
    set_number("HARP_FLOWS", options->flows);
  }
  if (options->nsocks) {
    set_number("HARP_KERNEL_NSOCKS", options->nsocks);
  }
  if (options->kernel_cc) {
    setenv("HARP_KERNEL_CC", options->kernel_cc, 1);
  }
}

static int bring_up(struct session *session)
{
  int devices = 0;
  ncclResult_t result = session->api.init(log_line);
  if (result == ncclSuccess) {
    result = session->api.devices(&devices);
  }
  if (result != ncclSuccess || devices < 1) {
    session_say(session,
                "%s v%d declines: init: %s, %d devices; NCCL would go on to its next "
                "transport%s",
                session->api.name, session->api.version, netapi_result_name(result), devices,
                warned || log_info ? "" : "; NCCL_DEBUG=INFO shows the reason");
    return -1;
  }
  session->flows = flows_in_log;
  session->sockets = kernel_in_log.sockets;
  session->congestion = kernel_in_log.congestion[0] ? kernel_in_log.congestion : NULL;
  session->channel_count = session->options->channels;
  for (unsigned i = 0; i < session->channel_count; i++) {
    session->channels[i].device = (int)i % devices;
    session->channels[i].distance = session->operation->pairwise ? (int)i + 1 : 1;
  }
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
  log_rank = options->rank;
  log_info = options->debug;
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
  if (rendezvous_exchange(session->rendezvous, mine, size, session->everybody) == 0) {
    return 0;
  }
  session_say(session, "%s", rendezvous_error(session->rendezvous));
  return -1;
}

void session_decline(struct session *session)
{
  const struct options *options = session->options;
  session->rendezvous = rendezvous_new(options->rank, options->ranks, options->timeout_ms);
  if (session->rendezvous) {
    rendezvous_decline(session->rendezvous, options->host, options->port);
  }
}

int session_join(struct session *session)
{
  const struct options *options = session->options;
  session->rendezvous = rendezvous_new(options->rank, options->ranks, options->timeout_ms);
  session->everybody = malloc((size_t)options->ranks * SESSION_LARGEST_EXCHANGE);
  if (!session->rendezvous || !session->everybody) {
    session_say(session, "there is no memory for %d ranks", options->ranks);
    return -1;
  }
  if (rendezvous_open(session->rendezvous, options->host, options->port, options->host_is_node)) {
    session_say(session, "%s", rendezvous_error(session->rendezvous));
    return -1;
  }
  return 0;
}

static int target(const struct session *session, const struct channel *channel)
{
  return (session->options->rank + channel->distance) % session->options->ranks;
}

static int source(const struct session *session, const struct channel *channel)
{
  int ranks = session->options->ranks;
  return (session->options->rank + ranks - channel->distance) % ranks;
}

static bool sends(const struct session *session)
{
  return session->operation->sends(session->options->rank, session->options->ranks);
}

static bool receives(const struct session *session)
{
  return session->operation->receives(session->options->rank, session->options->ranks);
}

/* Says why connect and accept can no longer complete. A rank that leaves may have a reason that the
 * plugin of this rank is about to name, so this rank goes on for LAST_WORDS_NS. */
static bool gives_up(struct session *session, uint64_t limit, uint64_t *left_at, const char *verb)
{
  uint64_t now = clock_ns();
  if (now > limit) {
    session_say(session, "%s did not complete within --timeout", verb);
    return true;
  }
  if (!*left_at && rendezvous_is_broken(session->rendezvous)) {
    *left_at = now;
  }
  if (*left_at && now - *left_at > LAST_WORDS_NS) {
    session_say(session, "%s did not complete: %s", verb, rendezvous_error(session->rendezvous));
    return true;
  }
  return false;
}

static int make_comms(struct session *session, struct channel *channel, void *handle)
{
  struct timespec pause = {.tv_nsec = 50 * 1000};
  uint64_t limit = clock_ns() + (uint64_t)session->options->timeout_ms * 1000000, left_at = 0;
  bool connecting = sends(session), accepting = receives(session);
  while (connecting || accepting) {
    ncclResult_t result = ncclSuccess;
    if (connecting) {
      result = session->api.connect(channel->device, handle, &channel->send_comm);
    }
    if (result != ncclSuccess) {
      return failed(session, "connect", result);
    }
    connecting = connecting && !channel->send_comm;
    if (accepting) {
      result = session->api.accept(channel->listener, &channel->receive_comm);
    }
    if (result != ncclSuccess) {
      return failed(session, "accept", result);
    }
    accepting = accepting && !channel->receive_comm;
    if ((connecting || accepting) &&
        gives_up(session, limit, &left_at, connecting ? "connect" : "accept")) {
      return -1;
    }
    nanosleep(&pause, NULL);
  }
  return 0;
}

static int connect_ring(struct session *session, struct channel *channel)
{
  char handle[SESSION_LARGEST_EXCHANGE] = {0};
  size_t size = session->api.handle_size;
  if (receives(session)) {
    ncclResult_t result = session->api.listen(channel->device, handle, &channel->listener);
    if (result != ncclSuccess) {
      return failed(session, "listen", result);
    }
  }
  if (session_exchange(session, handle, size)) {
    return -1;
  }
  memcpy(handle, (char *)session->everybody + (size_t)target(session, channel) * size, size);
  return make_comms(session, channel, handle);
}

static int register_region(struct session *session, const struct channel *channel,
                           struct region *region)
{
  ncclResult_t result = ncclSuccess;
  if (channel->send_comm) {
    result = session->api.register_memory(channel->send_comm, region->data, region->size,
                                          &region->send_mhandle);
  }
  if (result == ncclSuccess && channel->receive_comm) {
    result = session->api.register_memory(channel->receive_comm, region->data, region->size,
                                          &region->receive_mhandle);
  }
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

static int make_regions(struct session *session, struct channel *channel, struct pass *shape)
{
  size_t sizes[OPERATION_REGIONS] = {0};
  session->operation->sizes(shape, shape->size, sizes);
  for (int i = 0; i < OPERATION_REGIONS; i++) {
    if (!sizes[i]) {
      continue;
    }
    void *data = map_region(session, &sizes[i]);
    if (!data) {
      session_say(session, "there is no memory for messages of %zu bytes: lower -e%s",
                  session->options->max_size,
                  session->options->hugepages
                      ? ", or set hugepages of 2 MiB aside (sysctl vm.nr_hugepages)"
                      : "");
      return -1;
    }
    channel->regions[i] = (struct region){.data = data, .size = sizes[i]};
    if (register_region(session, channel, &channel->regions[i])) {
      return -1;
    }
  }
  return 0;
}

/* Connects the ring of each channel, then allocates the memory of each. */
static int make_channels(struct session *session)
{
  struct pass shapes[OPTIONS_MAX_CHANNELS];
  for (unsigned i = 0; i < session->channel_count; i++) {
    if (connect_ring(session, &session->channels[i])) {
      return -1;
    }
  }
  session_prepare(session, shapes, session->options->max_size);
  for (unsigned i = 0; i < session->channel_count; i++) {
    if (make_regions(session, &session->channels[i], &shapes[i])) {
      return -1;
    }
  }
  return 0;
}

static int run_passes(struct pass *passes)
{
  struct pump *pumps[OPTIONS_MAX_CHANNELS];
  unsigned count = passes->channel_count;
  for (unsigned i = 0; i < count; i++) {
    pumps[i] = &passes[i].pump;
    if (passes[i].operation->begin(&passes[i])) {
      snprintf(pumps[0]->failure, sizeof(pumps[0]->failure), "no memory for the plan of the pass");
      return -1;
    }
  }
  return pump_run(pumps, count);
}

static void *progress_main(void *argument)
{
  struct session *session = argument;
  pthread_mutex_lock(&session->lock);
  for (;;) {
    while (!session->job && !session->stop) {
      pthread_cond_wait(&session->changed, &session->lock);
    }
    if (session->stop) {
      break;
    }
    struct pass *passes = session->job;
    pthread_mutex_unlock(&session->lock);
    int outcome = run_passes(passes);
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
  if (make_channels(session)) {
    return -1;
  }
  if (pthread_create(&session->progress, NULL, progress_main, session)) {
    session_say(session, "the progress thread cannot be started");
    return -1;
  }
  session->progress_runs = true;
  return 0;
}

void session_prepare(const struct session *session, struct pass *passes, size_t size)
{
  const struct options *options = session->options;
  unsigned count = session->channel_count;
  for (unsigned i = 0; i < count; i++) {
    const struct channel *channel = &session->channels[i];
    passes[i] = (struct pass){
        .operation = session->operation,
        .datatype = options->datatype,
        .rank = options->rank,
        .ranks = options->ranks,
        .source = source(session, channel),
        .target = target(session, channel),
        .channels = passes,
        .channel_count = count,
        .step = session->step,
        .outstanding = session->outstanding,
        .pause_ms = (unsigned)options->pause_ms,
        .regions = (struct region *)(uintptr_t)channel->regions,
        .pump =
            {
                .api = &session->api,
                .callbacks = &session->operation->callbacks,
                .user = &passes[i],
                .send = {.verb = "isend", .comm = channel->send_comm},
                .receive = {.verb = "irecv", .comm = channel->receive_comm},
                .channel = i,
                .outstanding = session->outstanding,
                .timeout_ns = (uint64_t)options->timeout_ms * 1000000,
                .bytes_per_ns = options->rate_gbit / 8 / count,
                .rests = options->rests,
            },
    };
  }
  pass_divide(passes, count, size);
}

/* Says why the passes failed, and what had arrived before. */
static void say_failure(const struct session *session, const struct pass *passes, size_t size)
{
  unsigned long long messages = 0, wrong = 0;
  for (unsigned i = 0; i < passes->channel_count; i++) {
    messages += passes[i].pump.receive.done;
    wrong += passes[i].wrong;
  }
  session_say(session, "%zu bytes: %s", size, passes->pump.failure);
  if (passes->verify) {
    session_say(session, "%llu messages had come before that, with %llu wrong elements", messages,
                wrong);
  }
}

/* A plugin logs only while it is called, and HARP writes its trace in a thread. This rank may wait
 * long for the other ranks next, so it first calls the plugin for the last lines. */
static void let_plugin_log(const struct session *session)
{
  const struct timespec step = {.tv_nsec = LAST_LINES_STEP_MS * 1000000};
  char handle[SESSION_LARGEST_EXCHANGE];
  void *listener;
  for (int ms = 0; ms < LAST_LINES_MS; ms += LAST_LINES_STEP_MS) {
    nanosleep(&step, NULL);
    if (session->api.listen(session->channels[0].device, handle, &listener) != ncclSuccess) {
      return;
    }
    session->api.close_listener(listener);
  }
}

int session_run(struct session *session, struct pass *passes, size_t size)
{
  signals_await_stop(true);
  pthread_mutex_lock(&session->lock);
  session->job = passes;
  pthread_cond_broadcast(&session->changed);
  while (session->job) {
    pthread_cond_wait(&session->changed, &session->lock);
  }
  int outcome = session->outcome;
  pthread_mutex_unlock(&session->lock);
  signals_await_stop(false);
  if (outcome) {
    say_failure(session, passes, size);
    let_plugin_log(session);
  }
  for (unsigned i = 0; i < passes->channel_count; i++) {
    passes[i].operation->finish(&passes[i]);
  }
  return outcome;
}

static void stop_progress(struct session *session)
{
  if (!session->progress_runs) {
    return;
  }
  pthread_mutex_lock(&session->lock);
  session->stop = true;
  pthread_cond_broadcast(&session->changed);
  pthread_mutex_unlock(&session->lock);
  pthread_join(session->progress, NULL);
}

static void free_region(struct session *session, const struct channel *channel,
                        struct region *region)
{
  if (region->send_mhandle) {
    session->api.deregister_memory(channel->send_comm, region->send_mhandle);
  }
  if (region->receive_mhandle) {
    session->api.deregister_memory(channel->receive_comm, region->receive_mhandle);
  }
  if (region->data) {
    munmap(region->data, region->size);
  }
}

static void close_channel(struct session *session, struct channel *channel)
{
  for (int i = 0; i < OPERATION_REGIONS; i++) {
    free_region(session, channel, &channel->regions[i]);
  }
  if (channel->send_comm) {
    session->api.close_send(channel->send_comm);
  }
  if (channel->receive_comm) {
    session->api.close_receive(channel->receive_comm);
  }
  if (channel->listener) {
    session->api.close_listener(channel->listener);
  }
}

void session_close(struct session *session)
{
  stop_progress(session);
  for (unsigned i = 0; i < session->channel_count; i++) {
    close_channel(session, &session->channels[i]);
  }
  if (session->device) {
    session->api.finalize();
  }
  if (session->rendezvous) {
    rendezvous_close(session->rendezvous);
  }
  free(session->everybody);
}
