/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation: the messages, their order, and their verification.
 *
 * A pass runs one size for some iterations. A verified pass fills the data before sending, poisons
 * the receive buffers, and checks every iteration. A timed pass of the same shape does neither.
 *
 * Channels divide a message into consecutive parts, or each block of a message. Each channel has a
 * pass for its part. In a pairwise operation, each channel has another peer.
 */
#ifndef HARP_BENCH_OPERATION_H
#define HARP_BENCH_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/bench/datatype.h"
#include "harp/bench/perf_pump.h"

enum {
  OPERATION_REGIONS = 3,
  /* Bytes by which the capacity of a verified receive may exceed the message. Not a multiple of a
   * page, so that buffers of verified passes begin at many offsets in a page. */
  OPERATION_SLACK = 4096 + 64,
};

struct pass {
  const struct operation *operation;
  const struct datatype *datatype;
  int rank, ranks;
  int source, target;    /* the ranks that this channel receives from and sends to */
  struct pass *channels; /* the passes of all channels */
  unsigned channel_count;
  size_t size;   /* bytes of this channel, in each block if the message has blocks */
  size_t block;  /* bytes of a block; 0: the message has no blocks */
  size_t offset; /* position of the channel's bytes in the message or block, a multiple of 8 */
  size_t step;   /* bytes of the largest message */
  unsigned outstanding;
  unsigned warmup;     /* iterations before the measured ones; 0 in a verified pass */
  unsigned iterations; /* measured or verified */
  bool verify;
  bool inject;            /* flip one received byte, once */
  unsigned pause_ms;      /* see signals.h */
  struct region *regions; /* OPERATION_REGIONS of them, with the sizes from operation->sizes */
  struct pump pump;       /* the operation sets the totals of send and receive */
  double *trips_us;       /* pingpong on rank 0: time of each round trip; else NULL */
  uint64_t messages;      /* of an iteration, in each direction; begin sets it */
  uint64_t checked;       /* messages of the iterations that were verified */
  uint64_t wrong;         /* elements */
  void *plan;             /* the operation's private data; finish frees it */
};

struct operation {
  const char *name;
  const struct datatype *datatype; /* default */
  const char *redop;
  int root;                              /* the rank whose data the others get; -1: none */
  bool reduces;                          /* sums, of any datatype that has a sum */
  bool blocks;                           /* the message has a block for each rank */
  bool pairwise;                         /* each rank exchanges blocks with every other rank */
  int ranks;                             /* number of ranks; 0: any number */
  unsigned outstanding;                  /* default, as in NCCL */
  size_t step;                           /* default, as in NCCL, bytes */
  const char *direction;                 /* the sending side; NULL: not applicable */
  bool round_trips;                      /* the operation needs pass.trips_us */
  bool draws;                            /* messages have random sizes, so passes cannot be timed */
  bool divides;                          /* channels can divide the messages */
  const struct pump_callbacks callbacks; /* their user argument is the pass */
  bool (*sends)(int rank, int ranks), (*receives)(int rank, int ranks);
  /* Computes the bytes of each region for messages up to size. */
  void (*sizes)(const struct pass *pass, size_t size, size_t regions[OPERATION_REGIONS]);
  /* Sets the pump's totals. 0, or -1: out of memory. */
  int (*begin)(struct pass *pass);
  void (*finish)(struct pass *pass);
  double (*bus_factor)(int ranks);               /* busbw = algbw times this */
  double (*bytes_moved)(int ranks, size_t size); /* over the wires, by all ranks, per iteration */
};

extern const struct operation operation_all_reduce, operation_reduce_scatter, operation_all_gather,
    operation_broadcast, operation_all_to_all, operation_sendrecv, operation_sendrecv_bidir,
    operation_pingpong, operation_mixed;

/* NULL: there is no operation of this name. */
const struct operation *operation_find(const char *name);

/* The names of all operations, with commas. */
const char *operation_names(void);

/* The bytes that each step and each block is a multiple of: those of an element, and at least those
 * of a word of the test data (pattern.h). */
size_t operation_unit(const struct datatype *datatype);

/* The largest message up to size that has whole elements in equal blocks, as in nccl-tests; size
 * itself if the operation's messages have no blocks. */
size_t operation_fit(const struct operation *operation, const struct datatype *datatype, int ranks,
                     size_t size);

/* For sends and receives: true on each rank. */
bool operation_on_every_rank(int rank, int ranks);

/* For bus_factor, as in nccl-tests: 1, and the share of a message's blocks that are another rank's,
 * (ranks - 1) / ranks. */
double operation_factor_one(int ranks);
double operation_factor_of_others(int ranks);

/* For bytes_moved: a message of size bytes goes to each rank but one, or a block of each rank's
 * message to each other rank. */
double operation_bytes_to_others(int ranks, size_t size);

/* The distance of the buffers that hold the steps of a pass. A timed pass has NCCL's layout: the
 * slots follow each other in one buffer, and each begins with a page. In a verified pass, buffers
 * begin anywhere, and have room for OPERATION_SLACK bytes more than a step. */
size_t pass_stride(const struct pass *pass);

/* Returns the bytes of count buffers, enough for both kinds of passes. */
size_t pass_buffers(const struct pass *pass, size_t count);

/* Sets size, block and offset of each pass: the part of its channel in a message of size bytes. */
void pass_divide(struct pass *passes, unsigned count, size_t size);

/* Sets the totals of the pump from the messages of an iteration. */
void pass_set_totals(struct pass *pass);

/* Returns the messages that are complete in every direction that the rank uses. */
uint64_t pass_done(const struct pass *pass);

/* An iteration begins when the previous one is complete in both directions, on all channels: as
 * in NCCL, where a kernel serves all channels. */
bool pass_may_begin(const struct pass *pass, uint64_t iteration);

/* Flips one byte of received data, once, if the pass requests it. */
void pass_inject(struct pass *pass, void *data, size_t size);

#endif
