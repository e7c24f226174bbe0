/* SPDX-License-Identifier: Apache-2.0 */
/* The poll: posts, frames in, timers, frames out. */
#include "harp/engine/instance.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "harp/engine/clock.h"
#include "harp/engine/config.h"
#include "harp/engine/link_state.h"
#include "harp/engine/log.h"
#include "harp/headers.h"
#include "harp/time_units.h"

/* Callers start the watchdog again after this time. Programming the core's timer takes some 10 us
 * in a virtual machine, so the interval is long. */
#define WATCHDOG_INTERVAL_NS 1400000ull

enum {
  BURST = 32,          /* frames per receive call, before acknowledgements are sent */
  LOOP_LIMIT = 1024,   /* frames of this process to itself that may wait */
  RECLAIM_US = 100000, /* time for a device to return its buffers */
  CALL_YIELDS = 64,    /* a caller yields so often before it sleeps between its polls */
  CALL_SLEEP_US = 20,
  TIMERS_WAIT = 16, /* consecutive polls with frames, after which timers run in any case */
};

/* --- Output --- */

static uint32_t load_u32(const uint8_t *p)
{
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* The instance of this process that should receive a frame to our own address; NULL: none. */
static struct harp_instance *own_destination(const struct harp_instance *instance,
                                             const struct harp_tx_frame *frame)
{
  const uint8_t *ip = (const uint8_t *)frame->iov[0].iov_base + ETH_HEADER;
  const uint8_t *destination = ip + IP_HEADER + TCP_DEST; /* HARP sends no IPv4 options */
  if (!instance->port_owner || frame->header_length < ETH_HEADER + IP_HEADER + TCP_HEADER ||
      load_u32(ip + IP_DST) != instance->port->info.address) {
    return NULL;
  }
  uint16_t port = (uint16_t)(destination[0] << 8 | destination[1]);
  uint8_t owner = atomic_load_explicit(&instance->port_owner[port], memory_order_acquire);
  return owner ? instance->siblings[owner - 1] : NULL;
}

/* Queues a copy of a frame for an instance of this process, since a NIC does not return a frame to
 * its sender. */
static int loop_back(struct harp_instance *target, const struct harp_tx_frame *frame)
{
  if (atomic_load_explicit(&target->loop_count, memory_order_relaxed) >= LOOP_LIMIT) {
    return -EAGAIN;
  }
  struct harp_loop_frame *copy = malloc(sizeof *copy + frame->length);
  if (!copy) {
    return -EAGAIN;
  }
  copy->next = NULL;
  copy->length = 0;
  copy->segment_size = frame->segment_size;
  for (int i = 0; i < frame->iov_count; i++) {
    memcpy(copy->data + copy->length, frame->iov[i].iov_base, frame->iov[i].iov_len);
    copy->length += (uint32_t)frame->iov[i].iov_len;
  }
  pthread_mutex_lock(&target->loop_lock);
  *(target->loop_last ? &target->loop_last->next : &target->loop_first) = copy;
  target->loop_last = copy;
  atomic_fetch_add_explicit(&target->loop_count, 1, memory_order_release);
  pthread_mutex_unlock(&target->loop_lock);
  return 0;
}

static int transmit(void *user, const struct harp_tx_frame *frame)
{
  struct harp_instance *instance = user;
  struct harp_instance *own = own_destination(instance, frame);
  if (own) {
    return loop_back(own, frame);
  }
  int result = instance->port->ops->transmit(instance->port, instance->queue, frame);
  bool full = result == -EAGAIN;
  if (full && !instance->port_full) {
    harp_trace(&instance->trace, instance->now, HARP_TRACE_NO_FLOW, HARP_TRACE_port_full, 0, 0);
  }
  instance->port_full = full;
  if (instance->capture.count && result == 0) {
    harp_capture_frame(&instance->capture, true, frame->iov, frame->iov_count,
                       &instance->counters[HARP_COUNTER_capture_lost]);
  }
  return result;
}

/* --- Input --- */

static unsigned receive_loop(struct harp_instance *instance)
{
  if (atomic_load_explicit(&instance->loop_count, memory_order_acquire) == 0) {
    return 0;
  }
  pthread_mutex_lock(&instance->loop_lock);
  struct harp_loop_frame *list = instance->loop_first;
  instance->loop_first = instance->loop_last = NULL;
  atomic_store_explicit(&instance->loop_count, 0, memory_order_release);
  pthread_mutex_unlock(&instance->loop_lock);
  unsigned count = 0;
  while (list) {
    struct harp_loop_frame *next = list->next;
    /* The frame never left memory, so its bytes are good even without a checksum. */
    struct harp_rx_frame frame = {.header = list->data,
                                  .header_length = list->length,
                                  .segment_size = list->segment_size,
                                  .checksum_good = 1};
    harp_stack_receive(instance->stack, &frame);
    free(list);
    list = next;
    count++;
  }
  return count;
}

static void capture_received(struct harp_instance *instance, const struct harp_rx_frame *frame)
{
  struct iovec parts[] = {{(void *)(uintptr_t)frame->header, frame->header_length},
                          {(void *)(uintptr_t)frame->payload, frame->payload_length}};
  harp_capture_frame(&instance->capture, false, parts, 2,
                     &instance->counters[HARP_COUNTER_capture_lost]);
}

static unsigned receive_port(struct harp_instance *instance)
{
  struct harp_rx_frame frames[BURST];
  struct harp_rx_hint hint, *expected = NULL;
  if (instance->receive_postponed && instance->now < instance->postponed_until) {
    instance->receive_postponed--;
    return 0;
  }
  instance->receive_postponed = 0;
  if (instance->expect && instance->expect(instance->expect_user, &hint)) {
    expected = &hint;
  }
  int count = instance->port->ops->receive(instance->port, instance->queue, expected, frames,
                                           BURST);
  if (count <= 0) {
    harp_link_state_port(instance, count);
    return 0;
  }
  harp_link_state_port(instance, 0);
  for (int i = 0; i < count; i++) {
    if (instance->capture.count) {
      capture_received(instance, &frames[i]);
    }
    harp_stack_receive(instance->stack, &frames[i]);
  }
  return (unsigned)count;
}

/* --- Work from other threads --- */

static unsigned run_posts(struct harp_instance *instance)
{
  if (!atomic_load_explicit(&instance->posts, memory_order_relaxed)) {
    return 0;
  }
  struct harp_post *list = atomic_exchange(&instance->posts, NULL);
  struct harp_post *in_order = NULL;
  while (list) { /* the list has the newest first */
    struct harp_post *next = list->next;
    list->next = in_order;
    in_order = list;
    list = next;
  }
  unsigned count = 0;
  while (in_order) {
    struct harp_post *post = in_order;
    in_order = post->next;
    /* Cleared before the run, so a post during the run causes another run. */
    atomic_store(&post->queued, false);
    post->run(post, instance);
    count++;
  }
  return count;
}

/* Logs another host that uses HARP's own address. A shared address is not checked: the kernel
 * handles its conflicts, and a host with several interfaces may announce it with another hardware
 * address. */
static void tell_conflict(struct harp_instance *instance)
{
  const struct harp_port_info *info = &instance->port->info;
  uint8_t mac[6];
  if (instance->conflict_told || info->shares_address || instance->queue != 0 ||
      !harp_stack_conflict(instance->stack, mac)) {
    return;
  }
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &info->address, address, sizeof address);
  instance->conflict_told = true;
  harp_log_post(HARP_LOG_WARN,
                "HARP: another host has begun to use %s: %02x:%02x:%02x:%02x:%02x:%02x. Links may "
                "stall; take the address from that host (`harp stat` counts arp_conflicts)",
                address, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

static void run_tickers(struct harp_instance *instance)
{
  if (instance->now < instance->next_tick) {
    return;
  }
  instance->next_tick = instance->now + HARP_TICK_NS;
  instance->port->ops->count(instance->port, instance->queue, instance->counters);
  harp_stack_counters(instance->stack);
  tell_conflict(instance);
  harp_capture_serve(&instance->capture);
  harp_link_state_watch(instance);
  struct harp_ticker *next;
  for (struct harp_ticker *ticker = instance->tickers; ticker; ticker = next) {
    next = ticker->next;
    ticker->tick(ticker, instance, instance->now);
  }
}

void harp_instance_add_ticker(struct harp_instance *instance, struct harp_ticker *ticker)
{
  ticker->next = instance->tickers;
  instance->tickers = ticker;
}

/* --- The poll --- */

/* Timers are late after a pause, and frames that arrived in time still wait. The frames go first,
 * for at most TIMERS_WAIT polls. Otherwise timers would send data again that was acknowledged. */
static bool timers_are_due(struct harp_instance *instance, unsigned frames)
{
  if (frames && instance->timers_waited < TIMERS_WAIT) {
    instance->timers_waited++;
    return false;
  }
  instance->timers_waited = 0;
  return true;
}

/* Detects a pause. A ticker makes a poll due every HARP_TICK_NS. A longer gap between polls means
 * that the process was stopped or the host was busy. */
static void notice_pause(struct harp_instance *instance, uint64_t before)
{
  uint64_t gap = instance->now - before;
  if (instance->tickers && gap > 2 * HARP_TICK_NS) {
    instance->held_up += gap - HARP_TICK_NS;
    instance->resumed = instance->now;
    instance->counters[HARP_COUNTER_poll_stalls]++;
    harp_stack_account_pause(instance->stack, gap - HARP_TICK_NS);
  }
}

static bool poll_once(struct harp_instance *instance)
{
  uint64_t sent = instance->counters[HARP_COUNTER_tx_frames];
  uint64_t before = instance->now;
  instance->now = harp_clock_ns();
  harp_stack_set_time(instance->stack, instance->now);
  notice_pause(instance, before);
  unsigned work = run_posts(instance);
  unsigned frames = receive_loop(instance) + receive_port(instance);
  run_tickers(instance);
  if (timers_are_due(instance, frames)) {
    harp_stack_advance(instance->stack, instance->now); /* runs timers, then flushes */
  } else {
    harp_stack_flush(instance->stack);
  }
  instance->port->ops->flush(instance->port, instance->queue);
  unsigned out = (unsigned)(instance->counters[HARP_COUNTER_tx_frames] - sent);
  work += frames + out;
  instance->counters[HARP_COUNTER_polls]++;
  if (work == 0) {
    instance->counters[HARP_COUNTER_polls_idle]++;
    return false;
  }
  instance->last_work = instance->now;
  if (frames || out) {
    harp_trace(&instance->trace, instance->now, HARP_TRACE_NO_FLOW, HARP_TRACE_poll, frames, out);
  }
  return true;
}

static bool poll_trylock(struct harp_instance *instance)
{
  return !atomic_load_explicit(&instance->poll_lock, memory_order_relaxed) &&
         !atomic_exchange_explicit(&instance->poll_lock, true, memory_order_acquire);
}

static void poll_unlock(struct harp_instance *instance)
{
  atomic_store_explicit(&instance->poll_lock, false, memory_order_release);
}

static void ring(struct harp_instance *instance)
{
  uint64_t one = 1;
  /* An eventfd whose count is full is readable already, so a failed write does not matter. */
  (void)!write(instance->doorbell, &one, sizeof one);
}

/* Wakes the worker if the next deadline is now before the end of its sleep. */
static void wake_for_deadline(struct harp_instance *instance)
{
  if (!atomic_load(&instance->asleep)) {
    return;
  }
  uint64_t next = harp_instance_deadline(instance);
  if (next < atomic_load(&instance->sleeps_until)) {
    ring(instance);
  }
}

uint64_t harp_instance_deadline(struct harp_instance *instance)
{
  uint64_t next = harp_stack_next_deadline(instance->stack);
  if (instance->tickers && instance->next_tick < next) {
    next = instance->next_tick;
  }
  return next;
}

bool harp_instance_hold(struct harp_instance *instance) { return poll_trylock(instance); }

bool harp_instance_poll_held(struct harp_instance *instance) { return poll_once(instance); }

void harp_instance_let_go(struct harp_instance *instance) { poll_unlock(instance); }

bool harp_instance_poll(struct harp_instance *instance, bool *worked)
{
  if (!poll_trylock(instance)) {
    return false;
  }
  bool work = poll_once(instance);
  if (worked) {
    *worked = work;
  }
  poll_unlock(instance);
  return true;
}

/* Tells the worker that a caller polls. This costs much less than waking a thread. */
static void restart_watchdog(struct harp_instance *instance)
{
  uint64_t set = atomic_load_explicit(&instance->watchdog_set, memory_order_relaxed);
  if (set != 0 && instance->now > set + WATCHDOG_INTERVAL_NS) {
    harp_instance_start_watchdog(instance, instance->now);
  }
}

static void poll_as_caller(struct harp_instance *instance)
{
  if (!poll_trylock(instance)) {
    return;
  }
  poll_once(instance);
  instance->counters[HARP_COUNTER_polls_by_caller]++;
  atomic_store_explicit(&instance->caller_polled, instance->now, memory_order_relaxed);
  restart_watchdog(instance);
  wake_for_deadline(instance);
  poll_unlock(instance);
}

void harp_instance_progress(struct harp_instance *instance)
{
  if (instance->callers_poll || atomic_load_explicit(&instance->asleep, memory_order_relaxed)) {
    poll_as_caller(instance);
  }
}

void harp_instance_post(struct harp_instance *instance, struct harp_post *post)
{
  if (atomic_exchange(&post->queued, true)) {
    return;
  }
  struct harp_post *head = atomic_load_explicit(&instance->posts, memory_order_relaxed);
  do {
    post->next = head;
  } while (!atomic_compare_exchange_weak(&instance->posts, &head, post));
  if (atomic_load(&instance->asleep)) {
    ring(instance);
  }
}

/* --- Calls: posts that a thread waits for --- */

enum call_state { CALL_WAITING, CALL_RUNNING, CALL_DONE, CALL_ABANDONED };

struct call {
  struct harp_post post;
  void (*function)(struct harp_instance *, void *);
  void *argument;
  atomic_int state;
};

/* Runs the call, or frees it if its caller no longer waits. */
static void run_call(struct harp_post *post, struct harp_instance *instance)
{
  struct call *call = (struct call *)post;
  int expected = CALL_WAITING;
  if (!atomic_compare_exchange_strong(&call->state, &expected, CALL_RUNNING)) {
    free(call);
    return;
  }
  call->function(instance, call->argument);
  atomic_store(&call->state, CALL_DONE);
}

int harp_instance_call(struct harp_instance *instance,
                       void (*function)(struct harp_instance *, void *), void *argument,
                       unsigned timeout_ms)
{
  if (atomic_load_explicit(&instance->forsaken, memory_order_relaxed)) {
    return -ETIMEDOUT;
  }
  struct call *call = calloc(1, sizeof *call);
  if (!call) {
    return -ENOMEM;
  }
  call->post.run = run_call;
  call->function = function;
  call->argument = argument;
  struct harp_run_time waited = {0};
  harp_instance_post(instance, &call->post);
  for (unsigned round = 0; atomic_load(&call->state) != CALL_DONE; round++) {
    poll_as_caller(instance);
    if (atomic_load(&call->state) == CALL_DONE) {
      break;
    }
    int expected = CALL_WAITING;
    if (harp_ran_ns(&waited) >= timeout_ms * NS_PER_MS &&
        atomic_compare_exchange_strong(&call->state, &expected, CALL_ABANDONED)) {
      return -ETIMEDOUT; /* the next poll frees it */
    }
    if (round > CALL_YIELDS) {
      harp_sleep_us(CALL_SLEEP_US);
    } else {
      sched_yield();
    }
  }
  free(call);
  return 0;
}

static void nothing(struct harp_instance *instance, void *argument) {}

int harp_instance_barrier(struct harp_instance *instance, unsigned timeout_ms)
{
  return harp_instance_call(instance, nothing, NULL, timeout_ms);
}

void harp_instance_forsake_if_silent(struct harp_instance *instance, unsigned timeout_ms)
{
  if (harp_instance_barrier(instance, timeout_ms) == -ETIMEDOUT) {
    atomic_store(&instance->forsaken, true);
  }
}

int harp_instance_reclaim(struct harp_instance *instance)
{
  return instance->port->ops->reclaim(instance->port, instance->queue, RECLAIM_US);
}

/* --- Life --- */

/* Records the stack's events in the trace. */
static void trace_stack(void *user, uint16_t local_port, enum harp_stack_event event, uint32_t a,
                        uint32_t b)
{
  static const uint8_t names[HARP_EVENTS] = {
      [HARP_EVENT_RETRANSMIT] = HARP_TRACE_retransmit,
      [HARP_EVENT_RECOVERY] = HARP_TRACE_recovery,
      [HARP_EVENT_TIMEOUT] = HARP_TRACE_rto,
      [HARP_EVENT_WINDOW_CLOSED] = HARP_TRACE_window_closed,
      [HARP_EVENT_RESET] = HARP_TRACE_reset,
      [HARP_EVENT_SENT] = HARP_TRACE_sent,
      [HARP_EVENT_ACKED] = HARP_TRACE_acked,
      [HARP_EVENT_LOST] = HARP_TRACE_lost,
  };
  struct harp_instance *instance = user;
  harp_trace(&instance->trace, instance->now, local_port, names[event], a, b);
}

static bool admits(void *user, uint32_t address)
{
  const struct harp_instance *instance = user;
  return harp_config_peer_allowed(instance->config, address);
}

static int create_stack(struct harp_instance *instance, const struct harp_instance_config *config)
{
  const struct harp_port_info *info = &config->port->info;
  struct harp_stack_io io = {
      .user = instance,
      .transmit = transmit,
      .event = trace_stack,
      .offloads = info->offloads,
      .max_frame = info->max_frame,
      .admits = admits,
      .only_asks = config->only_asks,
      .tentative = config->tentative,
      .counters = config->counters,
  };
  int result = harp_stack_create_io(&instance->stack, &config->stack, &io);
  if (result == 0) {
    instance->counters = harp_stack_counters(instance->stack);
  }
  return result;
}

int harp_instance_create(struct harp_instance **out, const struct harp_instance_config *config)
{
  struct harp_instance *instance = aligned_alloc(64, sizeof *instance);
  if (!instance) {
    return -ENOMEM;
  }
  memset(instance, 0, sizeof *instance);
  instance->port = config->port;
  instance->config = config->config;
  instance->queue = config->queue;
  instance->cpu = config->cpu;
  instance->callers_poll = config->callers_poll;
  instance->conflict_told = config->tentative;
  instance->capture.listener = -1;
  instance->now = harp_clock_ns();
  pthread_mutex_init(&instance->loop_lock, NULL);
  instance->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  instance->caller_watchdog = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  int result = instance->doorbell < 0 || instance->caller_watchdog < 0 ? -errno : 0;
  if (result == 0) {
    result = harp_trace_create(&instance->trace, HARP_TRACE_ENTRIES);
  }
  if (result == 0) {
    result = create_stack(instance, config);
  }
  if (result != 0) {
    harp_instance_destroy(instance);
    return result;
  }
  harp_stack_set_time(instance->stack, instance->now);
  if (config->statistics) {
    harp_capture_open(&instance->capture, config->statistics, config->queue); /* or no captures */
  }
  *out = instance;
  return 0;
}

void harp_instance_destroy(struct harp_instance *instance)
{
  if (!instance) {
    return;
  }
  harp_instance_stop(instance);
  harp_stack_destroy(instance->stack);
  while (instance->loop_first) {
    struct harp_loop_frame *next = instance->loop_first->next;
    free(instance->loop_first);
    instance->loop_first = next;
  }
  harp_capture_close(&instance->capture);
  if (instance->trace.records) {
    harp_trace_destroy(&instance->trace);
  }
  if (instance->doorbell >= 0) {
    close(instance->doorbell);
  }
  if (instance->caller_watchdog >= 0) {
    close(instance->caller_watchdog);
  }
  pthread_mutex_destroy(&instance->loop_lock);
  free(instance);
}
