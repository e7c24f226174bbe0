/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An instance: a core's share of a NIC. One queue of a port, one stack, their
 * counters and trace; nothing mutable is shared with other instances.
 *
 * Whoever holds the poll lock polls: the instance's worker, or for one poll an
 * application thread in its place. Everything that touches the stack (the flow
 * callbacks, posted work, calls) runs under the poll lock; other threads hand work
 * in by posts and calls.
 */
#ifndef HARP_ENGINE_INSTANCE_H
#define HARP_ENGINE_INSTANCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/port.h"
#include "harp/counters.h"
#include "harp/engine/trace.h"
#include "harp/stack/flow.h"

struct harp_config;
struct harp_instance;

/*
 * Work handed to the poller, embedded in what it is about. Posting it again
 * before it ran is one run. The owner keeps it alive until it has run.
 */
struct harp_post {
  struct harp_post *next;
  atomic_bool queued;
  void (*run)(struct harp_post *post, struct harp_instance *instance);
};

/* Called about every HARP_TICK_NS while registered, under the poll lock. */
struct harp_ticker {
  struct harp_ticker *next;
  void (*tick)(struct harp_ticker *ticker, struct harp_instance *instance, uint64_t now_ns);
};
#define HARP_TICK_NS 100000000ull

/* A frame that this process sends to itself. */
struct harp_loop_frame {
  struct harp_loop_frame *next;
  uint32_t length;
  uint16_t segment_size;
  uint8_t data[];
};

struct harp_instance {
  /* Read by every thread. */
  struct harp_port *port;
  unsigned queue;
  struct harp_stack *stack;
  uint64_t *counters;
  const struct harp_config *config;

  /* The poll lock, and the words by which threads find each other. */
  _Alignas(64) atomic_bool poll_lock;
  atomic_bool asleep;              /* the worker waits on its descriptors */
  _Atomic(uint64_t) sleeps_until;  /* ns: when it would wake by itself */
  _Atomic(uint64_t) caller_polled; /* ns: last poll by an application thread */
  _Atomic(struct harp_post *) posts;

  /* Under the poll lock. */
  _Alignas(64) uint64_t now;
  uint64_t last_work; /* ns: last poll that found something */
  uint64_t next_tick;
  uint64_t held_up;       /* ns: time in which nobody could poll, all together */
  uint64_t resumed;       /* ns: when the last such time ended */
  bool conflict_told;     /* also while the address is tentative: init tells then */
  unsigned timers_waited; /* polls in a row that found frames and ran no timers */
  struct harp_ticker *tickers;
  struct harp_trace trace;
  bool (*expect)(void *user, struct harp_rx_hint *hint); /* where the next payload goes */
  void *expect_user;
  uint64_t link_changed; /* ns: when the port last went down or came back */
  atomic_bool link_down; /* written under the poll lock; the worker looks before it sleeps, too */

  /* Frames to ourselves. */
  pthread_mutex_t loop_lock;
  struct harp_loop_frame *loop_first, *loop_last;
  atomic_uint loop_count;
  /* Which instance has a local port of this process (number + 1; 0: none), for those. */
  const _Atomic(uint8_t) *port_owner;
  struct harp_instance *const *siblings;

  /* The worker. */
  int doorbell; /* eventfd */
  bool scarce;  /* fewer cores than threads that would like to spin */
  int cpu;      /* -1: not pinned */
  pthread_t worker;
  bool has_worker;
  atomic_bool stop;
};

struct harp_instance_config {
  struct harp_port *port;           /* borrowed */
  const struct harp_config *config; /* borrowed; says who may connect */
  unsigned queue;
  struct harp_stack_config stack;
  bool only_asks;     /* the kernel answers ARP and ICMP for the address */
  bool tentative;     /* the address is not used before harp_stack_use_address */
  uint64_t *counters; /* HARP_COUNTERS words; NULL: the stack's own */
  int cpu;
  bool scarce;
};

/* 0, -EINVAL, -ENOMEM, or what the system said. */
int harp_instance_create(struct harp_instance **instance,
                         const struct harp_instance_config *config);
/* Stops the worker and frees; nobody may post or call any more. */
void harp_instance_destroy(struct harp_instance *instance);

/* Starts the worker thread, with all signals blocked. */
int harp_instance_start(struct harp_instance *instance);
void harp_instance_stop(struct harp_instance *instance);

/* One poll, if nobody else is polling. Returns whether it polled; *worked (may
 * be NULL) whether something was done. Any thread. */
bool harp_instance_poll(struct harp_instance *instance, bool *worked);

/* The same by an application thread that waits for something in test(): only
 * where it helps, which is when cores are scarce or the worker sleeps. */
void harp_instance_progress(struct harp_instance *instance);

/* Any thread; wakes the worker if it sleeps. */
void harp_instance_post(struct harp_instance *instance, struct harp_post *post);

/* Runs function under the poll lock and waits for it, at most timeout_ms; polls
 * itself while it waits. -ETIMEDOUT: it has not run, and will not. Not from
 * callbacks. */
int harp_instance_call(struct harp_instance *instance,
                       void (*function)(struct harp_instance *instance, void *argument),
                       void *argument, unsigned timeout_ms);

/* Under the poll lock. */
/* Waits, with a bound, until the device reads no memory of the application's
 * any more. 0, or -ETIMEDOUT. */
int harp_instance_reclaim(struct harp_instance *instance);
/* ns: when the instance has to be polled next; UINT64_MAX: never. */
uint64_t harp_instance_deadline(struct harp_instance *instance);
/* Whether this host's own network link is up. Asks the port, whose socket may not have told. */
bool harp_instance_link_up(struct harp_instance *instance);
/* ns: a clock that stands still while nobody could poll (the process was stopped, the host was busy
 * elsewhere). How long a peer has been silent is measured by it. */
static inline uint64_t harp_instance_running_time(const struct harp_instance *instance)
{
  return instance->now - instance->held_up;
}
void harp_instance_add_ticker(struct harp_instance *instance, struct harp_ticker *ticker);

#endif
