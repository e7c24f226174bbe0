/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an operation moves, in which order, and how its bytes are verified.
 *
 * A pass runs one size for some iterations. A verified pass writes data before
 * they are sent, poisons where they are received, and checks every iteration;
 * a timed pass of the same shape does neither.
 */
#ifndef HARP_BENCH_OPERATION_H
#define HARP_BENCH_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/bench/perf_pump.h"

enum { OPERATION_REGIONS = 3 };

struct pass {
  const struct operation *operation;
  int rank, ranks;
  size_t size; /* bytes */
  size_t step; /* bytes of the largest message */
  unsigned outstanding;
  unsigned warmup; /* iterations before those that count; 0 in a verified pass */
  unsigned iterations;
  bool verify;
  bool inject;            /* flip a byte that this rank receives, once */
  unsigned pause_ms;      /* see signals.h */
  struct region *regions; /* OPERATION_REGIONS of them, as operation->sizes said */
  struct pump pump;       /* send and receive totals are the operation's to set */
  double *trips_us;       /* pingpong, rank 0: the time of each round trip; else NULL */
  uint64_t wrong;         /* elements */
  void *plan;             /* the operation's own; freed by finish */
};

struct operation {
  const char *name;
  const char *dtype;
  const char *redop;
  size_t unit;           /* bytes of an element */
  int ranks;             /* how many it takes; 0: any number */
  unsigned outstanding;  /* as NCCL has them */
  size_t step;           /* likewise, bytes */
  const char *direction; /* which side sends; NULL: has no meaning */
  bool round_trips;      /* pass.trips_us is wanted */
  bool draws;            /* messages have sizes of their own: no pass can be timed */
  const struct pump_callbacks callbacks; /* their user is the pass */
  bool (*sends)(int rank), (*receives)(int rank);
  /* Bytes of each region for messages up to size. */
  void (*sizes)(const struct pass *pass, size_t size, size_t regions[OPERATION_REGIONS]);
  /* Sets the pump's totals. 0, or -1: no memory. */
  int (*begin)(struct pass *pass);
  void (*finish)(struct pass *pass);
  double (*bus_factor)(int ranks);               /* busbw = algbw times this */
  double (*bytes_moved)(int ranks, size_t size); /* over the wires, by all ranks, an iteration */
};

extern const struct operation operation_all_reduce, operation_sendrecv, operation_sendrecv_bidir,
    operation_pingpong, operation_mixed;

/* NULL: there is none of this name. */
const struct operation *operation_find(const char *name);

/* Flips one byte of received data if this pass is to, once. */
void pass_inject(struct pass *pass, void *data, size_t size);

#endif
