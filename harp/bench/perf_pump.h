/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress loop of NCCL's proxy. In each pass, each side posts its next request as soon as
 * possible, up to a limit, or tests its oldest one. The thread yields its core after a pass
 * without an event, and also after every eighth pass. The operation provides the messages and
 * buffers. Each channel has a pump, and one thread runs the pumps of all channels.
 *
 * Thread: the progress thread.
 */
#ifndef HARP_BENCH_PERF_PUMP_H
#define HARP_BENCH_PERF_PUMP_H

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
  uint64_t bytes_posted;
  struct pending pending[PUMP_MAX_OUTSTANDING];
};

struct pump_callbacks {
  /* Returns true if message number index can be posted now, and describes it. The pump may ask
   * again for the same index. */
  bool (*send)(void *user, uint64_t index, struct transfer *transfer);
  bool (*receive)(void *user, uint64_t index, struct transfer *transfer);
  /* The message is complete; side->done includes it. */
  void (*sent)(void *user, uint64_t index);
  void (*received)(void *user, uint64_t index, size_t size);
};

struct pump {
  const struct netapi *api;
  const struct pump_callbacks *callbacks;
  void *user;
  struct pump_side send, receive;
  unsigned channel;
  unsigned outstanding;             /* on each side */
  uint64_t timeout_ns;              /* the run fails after this time without progress */
  double bytes_per_ns;              /* limit of the offered load; 0: no limit */
  bool rests;                       /* sleep while the limit holds back all requests */
  uint64_t warm_send, warm_receive; /* messages before the clock starts */
  /* Results */
  uint64_t began_ns, start_ns, end_ns; /* start: end of the warm-up */
  char failure[PUMP_FAILURE];
};

/* Runs the pumps of all channels in turn. The results of the run are in the first pump.
 * 0; -1 with a sentence in its failure. */
int pump_run(struct pump *const *pumps, unsigned count);

#endif
