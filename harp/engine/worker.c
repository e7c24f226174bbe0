/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An instance's worker thread. It polls while there is traffic. It then spins, yields, and sleeps
 * on the port's descriptor and the doorbell until the next deadline. The worker sleeps while an
 * application thread polls, if these are to poll (poll_threads.h).
 *
 * The worker sleeps at once on a crowded CPU, which other threads use, too. A yield there lasts for
 * the time slice of another thread, but the kernel runs a sleeper as soon as its descriptor is
 * readable.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "harp/engine/clock.h"
#include "harp/engine/instance.h"
#include "harp/engine/thread.h"

#define SPIN_NS 50000ull           /* busy polls after the last work */
#define YIELD_NS 200000ull         /* end of the time in which it yields between polls */
#define CALLERS_YIELD_NS 20000ull  /* the same if callers poll; it does not spin then */
#define LONG_YIELD_NS 100000ull    /* another thread has probably run meanwhile */
#define LONG_YIELDS 2              /* in a row: the CPU is crowded, and not just interrupted */
#define CROWDED_FOR_NS 50000000ull /* until the worker yields again on a crowded CPU */
#define SLEEP_MOST_NS 1000000000ull
#define SLEEP_DOWN_NS 50000000ull  /* the same if the device is down, which cannot wake it */
#define CALLER_FRESH_NS 300000ull  /* a caller that has polled within this time will poll again */
#define LAST_COUNT_NS 100000000ull /* bound of harp_instance_stop's wait for the poll lock */

/* How yields go on the worker's CPU. */
struct crowd {
  unsigned long_yields; /* in a row */
  uint64_t until;       /* ns: the CPU counts as crowded */
};

static void yield_to_others(struct crowd *crowd)
{
  uint64_t before = harp_clock_ns();
  sched_yield();
  uint64_t after = harp_clock_ns();
  if (after - before < LONG_YIELD_NS) {
    crowd->long_yields = 0;
    return;
  }
  crowd->long_yields++;
  if (crowd->long_yields >= LONG_YIELDS) {
    crowd->until = after + CROWDED_FOR_NS;
  }
}

static bool caller_is_polling(struct harp_instance *instance, uint64_t now)
{
  uint64_t last = atomic_load_explicit(&instance->caller_polled, memory_order_relaxed);
  return now < last + CALLER_FRESH_NS;
}

static void drain_doorbell(struct harp_instance *instance)
{
  uint64_t count;
  (void)!read(instance->doorbell, &count, sizeof count);
}

void harp_instance_start_watchdog(struct harp_instance *instance, uint64_t now)
{
  struct itimerspec timer = {.it_value = {0, HARP_CALLER_GONE_NS}};
  timerfd_settime(instance->caller_watchdog, 0, &timer, NULL);
  atomic_store_explicit(&instance->watchdog_set, now, memory_order_relaxed);
}

/* Sleeps until callers stop to poll: polling callers start the watchdog again, and it wakes the
 * worker HARP_CALLER_GONE_NS after the last start. A worker that wakes to look at the clock would
 * take some 20 us from the caller's core each time. */
static void wait_for_caller_to_stop(struct harp_instance *instance, uint64_t now)
{
  struct pollfd fds[2] = {{.fd = instance->doorbell, .events = POLLIN},
                          {.fd = instance->caller_watchdog, .events = POLLIN}};
  harp_instance_start_watchdog(instance, now);
  poll(fds, 2, -1);
  atomic_store_explicit(&instance->watchdog_set, 0, memory_order_relaxed);
  if (fds[0].revents) {
    drain_doorbell(instance);
  }
}

static void wait_for_work(struct harp_instance *instance, uint64_t now)
{
  uint64_t left = atomic_load(&instance->sleeps_until) - now;
  struct timespec timeout = {(time_t)(left / 1000000000), (long)(left % 1000000000)};
  struct pollfd fds[2] = {{.fd = instance->doorbell, .events = POLLIN},
                          {.fd = -1, .events = POLLIN}};
  /* The descriptor of a device that is down is always readable, so it is left out then. A late view
   * of link_down costs one needless wakeup, or a sleep until the deadline. */
  if (!atomic_load_explicit(&instance->link_down, memory_order_relaxed)) {
    fds[1].fd = instance->port->ops->descriptor(instance->port, instance->queue);
  }
  ppoll(fds, 2, &timeout, NULL);
  if (fds[0].revents) {
    drain_doorbell(instance);
    harp_instance_count_shared(instance, HARP_COUNTER_wakeups);
  }
}

/* Sets asleep, checks again for work, then sleeps. A poster does the reverse: it publishes its
 * post, then checks asleep. Both use sequentially consistent operations, so one of them sees the
 * other. The deadline is valid only under the poll lock. The worker returns and
 * tries again if another thread holds the lock. */
static void sleep_until_work(struct harp_instance *instance, struct crowd *crowd)
{
  if (!harp_instance_hold(instance)) {
    yield_to_others(crowd);
    return;
  }
  uint64_t now = harp_clock_ns();
  uint64_t deadline = harp_instance_deadline(instance);
  bool down = atomic_load_explicit(&instance->link_down, memory_order_relaxed);
  uint64_t longest = now + (down ? SLEEP_DOWN_NS : SLEEP_MOST_NS);
  atomic_store(&instance->sleeps_until, deadline < longest ? deadline : longest);
  atomic_store(&instance->asleep, true);
  bool stay = deadline <= now || atomic_load(&instance->posts) ||
              atomic_load(&instance->loop_count) || atomic_load(&instance->stop) ||
              instance->port->ops->arm(instance->port, instance->queue, true);
  if (!stay) {
    instance->counters[HARP_COUNTER_sleeps]++;
    harp_trace(&instance->trace, now, HARP_TRACE_NO_FLOW, HARP_TRACE_sleep, 0,
               (uint32_t)((atomic_load(&instance->sleeps_until) - now) / 1000));
  }
  harp_instance_let_go(instance);
  if (!stay) {
    wait_for_work(instance, now);
  }
  atomic_store(&instance->asleep, false);
  instance->port->ops->arm(instance->port, instance->queue, false);
}

/* Polls once and returns whether the poll found work. *held: the worker has the poll lock. It keeps
 * the lock until it yields or sleeps, unless callers are to poll. */
static bool poll_as_worker(struct harp_instance *instance, bool *held)
{
  *held = *held || harp_instance_hold(instance);
  return *held && harp_instance_poll_held(instance);
}

static void let_go(struct harp_instance *instance, bool *held)
{
  if (*held) {
    harp_instance_let_go(instance);
  }
  *held = false;
}

static void *work(void *argument)
{
  struct harp_instance *instance = argument;
  struct crowd crowd = {0};
  uint64_t last_work = harp_clock_ns();
  uint64_t spin = instance->callers_poll ? 0 : SPIN_NS;
  uint64_t yield = instance->callers_poll ? CALLERS_YIELD_NS : YIELD_NS;
  bool held = false;
  while (!atomic_load_explicit(&instance->stop, memory_order_relaxed)) {
    uint64_t now = harp_clock_ns();
    if (instance->callers_poll && caller_is_polling(instance, now)) {
      wait_for_caller_to_stop(instance, now);
      last_work = harp_clock_ns();
      continue;
    }
    last_work = poll_as_worker(instance, &held) ? now : last_work;
    uint64_t idle = now - last_work;
    bool crowded = now < crowd.until;
    if (idle < spin && !crowded) {
      continue;
    }
    let_go(instance, &held);
    if (idle == 0) {
      continue; /* the poll found work */
    }
    if (idle >= yield || crowded) {
      sleep_until_work(instance, &crowd);
    } else {
      yield_to_others(&crowd);
    }
  }
  let_go(instance, &held);
  return NULL;
}

static void pin(struct harp_instance *instance)
{
  if (instance->cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)instance->cpu, &set);
    pthread_setaffinity_np(instance->worker, sizeof set, &set);
  }
}

int harp_instance_start(struct harp_instance *instance)
{
  atomic_store(&instance->stop, false);
  int result = harp_thread_start(&instance->worker, work, instance, "harp");
  if (result != 0) {
    return result;
  }
  instance->has_worker = true;
  pin(instance);
  return 0;
}

/* Adds the port's counts since the last tick, before the counters become final. An application
 * thread may hold the poll lock. At exit it may never release the lock: it may have ended inside a
 * poll, or it may be this thread. So the wait has a limit. The last counts are lost after it. */
static void count_to_the_end(struct harp_instance *instance)
{
  uint64_t deadline = harp_clock_ns() + LAST_COUNT_NS;
  while (!harp_instance_hold(instance)) {
    if (harp_clock_ns() > deadline) {
      return;
    }
    sched_yield();
  }
  instance->port->ops->count(instance->port, instance->queue, instance->counters);
  harp_instance_let_go(instance);
}

void harp_instance_stop(struct harp_instance *instance)
{
  if (!instance->has_worker) {
    return;
  }
  atomic_store(&instance->stop, true);
  uint64_t one = 1;
  (void)!write(instance->doorbell, &one, sizeof one);
  pthread_join(instance->worker, NULL);
  instance->has_worker = false;
  count_to_the_end(instance);
}
