/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a process of the model, and its environment: sleep, log, its thread, and a count
 * of its memory. */
#include "tests/model/process.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "harp/engine/log.h"
#include "tests/sim/books.h"

static const struct process_calls *calls;
static long blocks;

/* --- The linker sends these calls here (--wrap) --- */

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *memory);

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
  calls->sleeps((uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec);
  return 0;
}

static void *counted(void *memory)
{
  blocks += memory != NULL;
  return memory;
}

void *__wrap_malloc(size_t size) { return counted(__real_malloc(size)); }

void *__wrap_calloc(size_t count, size_t size) { return counted(__real_calloc(count, size)); }

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
  return counted(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *memory)
{
  blocks -= memory != NULL;
  __real_free(memory);
}

/* --- The thread that starts NICs --- */

static struct {
  void *(*function)(void *); /* NULL: there is none, or it has run */
  void *argument;
  bool at_once; /* the process ends */
} thread;

int __wrap_harp_thread_start(pthread_t *handle, void *(*function)(void *), void *argument,
                             const char *name);

static void run_thread(void)
{
  void *(*function)(void *) = thread.function;
  thread.function = NULL;
  if (function) {
    function(thread.argument);
  }
}

static void *do_nothing(void *argument) { return NULL; }

/* The owner runs the function later. pthread_join cannot be wrapped, because glibc_floor.h names
 * its version. So the plugin joins a thread that does nothing. */
int __wrap_harp_thread_start(pthread_t *handle, void *(*function)(void *), void *argument,
                             const char *name)
{
  FUZZ_EXPECT(!thread.function);
  thread.function = function;
  thread.argument = argument;
  if (thread.at_once) {
    run_thread();
  } else {
    calls->starts();
  }
  return -pthread_create(handle, NULL, do_nothing, NULL);
}

/* --- Where another instance may come in between --- */

bool __real_link_idle(const struct net_link *link);
bool __real_flow_takes(struct link_flow *flow, uint32_t bytes);
void __real_link_flow_opened(struct net_link *link);
void __real_link_peer_closed(struct net_link *link);
bool __wrap_link_idle(const struct net_link *link);
bool __wrap_flow_takes(struct link_flow *flow, uint32_t bytes);
void __wrap_link_flow_opened(struct net_link *link);
void __wrap_link_peer_closed(struct net_link *link);

bool __wrap_link_idle(const struct net_link *link)
{
  bool idle = __real_link_idle(link);
  calls->preempts();
  return idle;
}

bool __wrap_flow_takes(struct link_flow *flow, uint32_t bytes)
{
  bool takes = __real_flow_takes(flow, bytes);
  calls->preempts();
  return takes;
}

void __wrap_link_flow_opened(struct net_link *link)
{
  calls->preempts();
  __real_link_flow_opened(link);
}

void __wrap_link_peer_closed(struct net_link *link)
{
  calls->preempts();
  __real_link_peer_closed(link);
}

/* --- Replaces harp/engine/log.c: every line goes out at once --- */

void harp_log_post(enum harp_log_level level, const char *format, ...)
{
  char text[HARP_LOG_LINE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  calls->says(level == HARP_LOG_WARN, text);
}

void harp_log_drain(harp_log_writer write_log, void *user) {}
uint64_t harp_log_dropped(void) { return 0; }
void harp_log_forget(void) {}

/* --- tests/fuzz/fuzz.h --- */

void fuzz_wrong(const char *file, int line, const char *what)
{
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
  abort();
}

/* --- Calls for the owner --- */

static struct host *here;

static struct host *create(const struct host_setup *setup, uint64_t now, uint64_t seed,
                           const struct process_calls *of)
{
  calls = of;
  here = host_create(setup, now, of->on_transmit);
  here->drawn = seed << 32;
  return here;
}

static void finalize(void)
{
  run_thread();
  thread.at_once = true;
  net_finalize(here->context);
  thread.at_once = false;
}

static void destroy(void)
{
  host_destroy();
  here = NULL;
}

static void poll_one(unsigned queue) { harp_instance_poll(host_instance(queue), NULL); }

static uint64_t deadline(unsigned queue) { return harp_instance_deadline(host_instance(queue)); }

static uint64_t rest_deadline(unsigned queue)
{
  return harp_stack_next_deadline(host_stack(queue));
}

/* Returns the number of local ports that NICs hold as long as they live. */
static unsigned shared_ports(void)
{
  unsigned count = 0;
  for (unsigned i = 0; i < here->transport->nics.claims.devices.count; i++) {
    count += here->transport->of_device[i]->shared_port != 0;
  }
  return count;
}

static const char *in_use(void)
{
  const struct harp_pool *pool;
  const char *what = NULL;
  struct transport_nic *nic = NULL;
  while ((nic = nic_next(here->transport, nic))) {
    for (unsigned i = 0; i < nic_instances(nic) && !what; i++) {
      const struct nic_instance *part = &nic->parts[i];
      what = part->flows ? "flows" : part->used_ports ? "used ports" : NULL;
      what = what ? what : stack_in_use(part->instance->stack, &pool);
    }
  }
  return !what && here->ports_taken > shared_ports() ? "local ports" : what;
}

static long blocks_taken(void) { return blocks; }

__attribute__((visibility("default"))) const struct process_api harp_model_process = {
    .create = create,
    .finalize = finalize,
    .destroy = destroy,
    .run_thread = run_thread,
    .instance = host_instance,
    .poll = poll_one,
    .deadline = deadline,
    .rest_deadline = rest_deadline,
    .frame = host_frame,
    .in_use = in_use,
    .blocks = blocks_taken,
    .peer = harp_flow_peer,
    .local_port = harp_flow_local_port,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .isend = net_isend,
    .irecv = net_irecv,
    .test = net_test,
    .close = net_close,
    .close_listener = net_close_listener,
};
