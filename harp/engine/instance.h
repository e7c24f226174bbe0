/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An instance drives one queue of a NIC, on one core: a queue of a port, a stack, and their
 * counters and trace. No other instance touches these.
 *
 * A thread polls only while it holds the poll lock: the instance's worker, or an application
 * thread for one poll. All code that touches the stack runs under the poll lock: flow
 * callbacks, posted work, and calls. Other threads hand in work by posts and calls.
 */
#ifndef HARP_ENGINE_INSTANCE_H
#define HARP_ENGINE_INSTANCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"
#include "harp/counters.h"
#include "harp/engine/capture.h"
#include "harp/engine/trace.h"
#include "harp/stack/flow.h"

struct harp_config;
struct harp_instance;

/*
 * Work for the poller, embedded in the object that it concerns. Several posts before it runs cause
 * one run. The owner keeps it alive until it has run.
 */
struct harp_post {
  struct harp_post *next;
  atomic_bool queued;
  void (*run)(struct harp_post *post, struct harp_instance *instance);
};

/* Called about every HARP_TICK_NS, under the poll lock. */
struct harp_ticker {
  struct harp_ticker *next;
  void (*tick)(struct harp_ticker *ticker, struct harp_instance *instance, uint64_t now_ns);
};
#define HARP_TICK_NS 100000000ull
/* The longest time for which an instance takes no frames from its port on request. */
#define HARP_POSTPONE_NS 20000ull

/* Time for an instance to begin a call, also on a busy host (harp_instance_call). */
enum { HARP_INSTANCE_CALL_MS = 1000 };

/* A frame that this process sends to itself. */
struct harp_loop_frame {
  struct harp_loop_frame *next;
  uint32_t length;
  uint16_t segment_size;
  uint8_t data[];
};

struct harp_instance {
  /* Constant after creation, read by any thread. */
  struct harp_port *port;
  unsigned queue;
  struct harp_stack *stack;
  uint64_t *counters;
  const struct harp_config *config;

  /* The poll lock, and the words by which the threads synchronize. */
  _Alignas(64) atomic_bool poll_lock;
  atomic_bool asleep;              /* the worker waits for work (sleep_until_work) */
  _Atomic(uint64_t) sleeps_until;  /* ns: end of its sleep without a wakeup */
  _Atomic(uint64_t) caller_polled; /* ns: last poll by an application thread */
  _Atomic(uint64_t) watchdog_set;  /* ns: last start of caller_watchdog; 0: it does not run */
  _Atomic(struct harp_post *) posts;
  atomic_bool forsaken; /* no thread polls any more: calls fail at once */

  /* Under the poll lock. */
  _Alignas(64) uint64_t now;
  uint64_t last_work;     /* ns: last poll that found work */
  uint64_t next_tick;     /* ns */
  uint64_t held_up;       /* ns: sum of all pauses in which no thread polled */
  uint64_t resumed;       /* ns: when the last pause ended */
  bool conflict_told;     /* the conflict was logged; also set while tentative: init reports it */
  bool port_full;         /* the port took no frame at the last attempt */
  unsigned timers_waited; /* consecutive polls that found frames and ran no timers */
  struct harp_ticker *tickers;
  struct harp_trace trace;
  struct harp_capture capture;
  bool (*expect)(void *user, struct harp_rx_hint *hint); /* tells where the next payload belongs */
  void *expect_user;
  unsigned receive_postponed; /* polls that take no frame from the port, */
  uint64_t postponed_until;   /* ns: and the end of this in any case */
  uint64_t link_changed;      /* ns: when the port last went down or up, or had no carrier */
  uint64_t outage;            /* ns: when the device failed or lost its carrier; 0: it works */
  atomic_bool link_down; /* written under the poll lock; the worker reads it before it sleeps */

  /* Frames from this process to itself. */
  pthread_mutex_t loop_lock;
  struct harp_loop_frame *loop_first, *loop_last;
  atomic_uint loop_count;
  /* The instance that owns a local port (number + 1; 0: none), to direct these frames. */
  const _Atomic(uint8_t) *port_owner;
  struct harp_instance *const *siblings;

  /* The worker. */
  int doorbell;        /* eventfd */
  int caller_watchdog; /* timerfd: wakes the worker if callers no longer poll */
  bool callers_poll;   /* threads in test() poll (poll_threads.h) */
  int cpu;             /* -1: not pinned */
  pthread_t worker;
  bool has_worker;
  atomic_bool stop;
};

struct harp_instance_config {
  struct harp_port *port;           /* borrowed */
  const struct harp_config *config; /* borrowed; `peers` limits which hosts may connect */
  unsigned queue;
  struct harp_stack_config stack;
  bool only_asks;     /* the kernel answers ARP and ICMP for the address */
  bool tentative;     /* the address must not be used before harp_stack_use_address */
  uint64_t *counters; /* HARP_COUNTERS words; NULL: the stack's own */
  /* Path of the file under which `harp capture` finds the instance; NULL: packet sockets see the
   * frames. */
  const char *statistics;
  int cpu;
  bool callers_poll;
};

/* 0, -EINVAL, -ENOMEM, or a negative errno of a system call. */
int harp_instance_create(struct harp_instance **instance,
                         const struct harp_instance_config *config);
/* Stops the worker and frees the instance. No thread may post or call any more. */
void harp_instance_destroy(struct harp_instance *instance);

/* Starts the worker thread, with all signals blocked. 0, or a negative errno. */
int harp_instance_start(struct harp_instance *instance);
/* Stops the worker and waits for its end. Does nothing if there is no worker. */
void harp_instance_stop(struct harp_instance *instance);

/* Starts caller_watchdog again: it fires HARP_CALLER_GONE_NS after now. */
void harp_instance_start_watchdog(struct harp_instance *instance, uint64_t now);
/* The worker polls again when this time has passed since the last start of caller_watchdog. The
 * time is less than the 2 ms after which a peer sends a tail loss probe (tcp_times.h). */
#define HARP_CALLER_GONE_NS 1800000ull

/* Polls once, unless another thread is polling. Returns whether it polled; *worked (may be NULL)
 * tells whether the poll found work. Any thread. */
bool harp_instance_poll(struct harp_instance *instance, bool *worked);

/* For the worker, which polls often and so keeps the poll lock: taking it costs a locked
 * instruction each time. hold takes the lock, unless another thread has it; poll_held polls once
 * under it, and returns whether the poll found work; let_go releases it. */
bool harp_instance_hold(struct harp_instance *instance);
bool harp_instance_poll_held(struct harp_instance *instance);
void harp_instance_let_go(struct harp_instance *instance);

/* As harp_instance_poll, for an application thread that waits in test(). It polls only if callers
 * are to poll (poll_threads.h), or if the worker sleeps. */
void harp_instance_progress(struct harp_instance *instance);

/* Queues work for the next poll, and wakes a sleeping worker. Any thread. */
void harp_instance_post(struct harp_instance *instance, struct harp_post *post);

/* Runs function under the poll lock and waits for it. The caller polls while it waits: at most
 * timeout_ms of running time until function begins, and without limit until it ends. *argument must
 * live until the call returns. 0; -ETIMEDOUT: function has not run and will not run; -ENOMEM. Any
 * thread, but not from callbacks. */
int harp_instance_call(struct harp_instance *instance,
                       void (*function)(struct harp_instance *instance, void *argument),
                       void *argument, unsigned timeout_ms);
/* Returns when the posts that were made before have run. Waits, and returns, as harp_instance_call.
 */
int harp_instance_barrier(struct harp_instance *instance, unsigned timeout_ms);
/* For a process that exits. A thread may have ended inside a poll, or be this one, and then nobody
 * releases the poll lock. Later calls fail at once if this one finds that, after timeout_ms. */
void harp_instance_forsake_if_silent(struct harp_instance *instance, unsigned timeout_ms);

/* The functions below are called under the poll lock. */

/* Waits at most 100 ms until the device no longer reads application memory. 0, or -ETIMEDOUT. */
int harp_instance_reclaim(struct harp_instance *instance);
/* When the instance must be polled next, ns; UINT64_MAX: never. */
uint64_t harp_instance_deadline(struct harp_instance *instance);
/* Whether this host's network link is up. It asks the port for the carrier, since a socket does not
 * report a lost carrier. */
bool harp_instance_link_up(struct harp_instance *instance);
/* A clock that stops during pauses in which no thread polled, because the process was stopped or
 * the host was busy. It measures how long a peer is silent. ns. */
static inline uint64_t harp_instance_running_time(const struct harp_instance *instance)
{
  return instance->now - instance->held_up;
}
/* Adds a ticker, which the caller keeps alive as long as the instance. */
void harp_instance_add_ticker(struct harp_instance *instance, struct harp_ticker *ticker);

/* Time of the current poll, ns of harp_clock_ns. */
static inline uint64_t harp_instance_now(const struct harp_instance *instance)
{
  return instance->now;
}

/* When the last pause ended in which no thread polled, ns; 0: there was none. */
static inline uint64_t harp_instance_resumed(const struct harp_instance *instance)
{
  return instance->resumed;
}

/* When the port last went down or up, or had no carrier, ns. */
static inline uint64_t harp_instance_link_changed(const struct harp_instance *instance)
{
  return instance->link_changed;
}

/* Adds to a counter of this instance. */
static inline void harp_instance_count(struct harp_instance *instance, enum harp_counter counter,
                                       uint64_t amount)
{
  instance->counters[counter] += amount;
}

/* Sets a gauge of this instance. */
static inline void harp_instance_gauge(struct harp_instance *instance, enum harp_counter counter,
                                       uint64_t value)
{
  instance->counters[counter] = value;
}

/* Records an event; local_port: HARP_TRACE_NO_FLOW if it is of no flow. */
static inline void harp_instance_trace(struct harp_instance *instance, uint16_t local_port,
                                       enum harp_trace_event event, uint32_t a, uint32_t b)
{
  harp_trace(&instance->trace, instance->now, local_port, event, a, b);
}

/* Sets the function that tells the port where the next payload belongs, until the next call. */
static inline void harp_instance_expect(struct harp_instance *instance,
                                        bool (*expect)(void *user, struct harp_rx_hint *hint),
                                        void *user)
{
  instance->expect = expect;
  instance->expect_user = user;
}

/* Ends the expectation of this user, if it is the current one. */
static inline void harp_instance_stop_expecting(struct harp_instance *instance, const void *user)
{
  if (instance->expect_user == user) {
    instance->expect = NULL;
    instance->expect_user = NULL;
  }
}

/* The next polls take no frame from the port, which keeps the frames meanwhile. polls: few, because
 * the frames of all connections wait. 0: the next poll takes frames again. The wait ends
 * HARP_POSTPONE_NS after now in any case. NCCL's threads may poll only once in a millisecond, and
 * the peer retransmits data that it hears nothing of. */
static inline void harp_instance_postpone_receive(struct harp_instance *instance, unsigned polls)
{
  instance->receive_postponed = polls;
  instance->postponed_until = instance->now + HARP_POSTPONE_NS;
}

/* The functions below may be called by any thread. */

/* Whether the port has reported that its link is down. */
static inline bool harp_instance_link_down(const struct harp_instance *instance)
{
  return atomic_load_explicit(&instance->link_down, memory_order_relaxed);
}

/* Adds one to a counter that only this function changes. */
static inline void harp_instance_count_shared(struct harp_instance *instance,
                                              enum harp_counter counter)
{
  __atomic_fetch_add(&instance->counters[counter], 1, __ATOMIC_RELAXED);
}

/* What the next three functions return never changes. */

/* The number of the instance, from 0: also that of its queue. */
static inline unsigned harp_instance_number(const struct harp_instance *instance)
{
  return instance->queue;
}

static inline struct harp_stack *harp_instance_stack(const struct harp_instance *instance)
{
  return instance->stack;
}

static inline const struct harp_port_info *harp_instance_port(const struct harp_instance *instance)
{
  return &instance->port->info;
}

#endif
