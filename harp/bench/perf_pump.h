/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress loop of NCCL's proxy: post sends and receives as they become
 * possible, at most so many at a time, and test the oldest of each, over and
 * over. What is sent and where it is received is an operation's business.
 *
 * Thread: the progress thread.
 */
#ifndef HARP_BENCH_PUMP_H
#define HARP_BENCH_PUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/bench/netapi.h"

enum { PUMP_MAX_OUTSTANDING = NCCL_NET_MAX_REQUESTS, PUMP_FAILURE = 256 };

/* Memory that is registered with both comms of a rank. */
struct region {
  uint8_t *data;
  size_t size; /* bytes */
  void *send_mhandle;
  void *receive_mhandle;
};

struct transfer {
  const struct region *region;
  void *data;
  size_t size; /* bytes to send, or the capacity */
};

struct pending {
  void *request;
  size_t size;
  uint64_t posted_ns;
};

/* One direction. Messages are numbered from 0; they are posted and finish in order. */
struct pump_side {
  const char *verb; /* "isend", "irecv" */
  void *comm;
  uint64_t total, posted, done;
  struct pending pending[PUMP_MAX_OUTSTANDING];
};

struct pump_callbacks {
  /* Whether message number index can be posted now, and what it is. May be
   * asked again for the same index. */
  bool (*send)(void *user, uint64_t index, struct transfer *transfer);
  bool (*receive)(void *user, uint64_t index, struct transfer *transfer);
  /* It is through; side->done counts it already. */
  void (*sent)(void *user, uint64_t index);
  void (*received)(void *user, uint64_t index, size_t size);
};

struct pump {
  const struct netapi *api;
  const struct pump_callbacks *callbacks;
  void *user;
  struct pump_side send, receive;
  unsigned outstanding;             /* on each side */
  uint64_t timeout_ns;              /* without progress for so long: it failed */
  double bytes_per_ns;              /* the most that is offered; 0: no limit */
  uint64_t warm_send, warm_receive; /* messages before the clock starts */
  /* Results */
  uint64_t began_ns, start_ns, end_ns; /* start: warm-up over */
  uint64_t bytes_posted;
  char failure[PUMP_FAILURE];
};

/* 0; -1 with a sentence in failure. */
int pump_run(struct pump *pump);

#endif
