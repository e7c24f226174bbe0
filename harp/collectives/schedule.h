/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of one operation: steps of sending, receiving and computing, and what each step
 * waits for. Planners write it, and progress.c carries it out. Idea: Hoefler, Lumsdaine and Rehm,
 * "Implementation and Performance Analysis of Non-Blocking Collective Operations for MPI" (2007).
 *
 * Steps of one queue run in their order. There is a queue for sends to each rank, one for receives
 * from each rank, and one for all computing. Messages of a link match in their order, so the
 * planner of the peer must write the same messages in the same order.
 *
 * Thread: a schedule belongs to one thread at a time.
 */
#ifndef HARP_COLLECTIVES_SCHEDULE_H
#define HARP_COLLECTIVES_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/collectives/reduce.h"

enum { NO_STEP = -1 };

enum step_kind {
  STEP_SEND,
  STEP_RECEIVE,
  STEP_COPY, /* bytes from `from` to `data` */
  STEP_LOAD, /* the reduction's functions of these names, with `count` elements */
  STEP_FOLD,
  STEP_FOLD_WIDE,
  STEP_STORE,
  STEP_SIGNAL, /* gives signal `count` (windows.h) */
  STEP_AWAIT,  /* waits for signal `count` of the window `from` */
  STEP_MATCH,  /* that rank must call the same operation, and give `bytes` */
};

struct step {
  enum step_kind kind;
  int32_t next;     /* of its queue */
  int32_t after[2]; /* steps that must be done before it starts, or NO_STEP */
  bool done;
  bool staged; /* a message in the link's own memory */
  void *data;
  const void *from;
  size_t bytes; /* of messages, copies and matches */
  size_t count; /* elements of reductions */
};

struct queue {
  int32_t head, tail;
};

struct window_call;
struct windows;

struct schedule {
  int ranks;
  struct windows *windows;  /* of operations that use them */
  uint32_t first;           /* the last signal of the operations before */
  uint32_t signals;         /* the last one that the steps give, counted from there */
  struct window_call *call; /* that the others read; the schedule owns it */
  size_t number;            /* of its memory in the windows */
  struct step *steps;
  int32_t count, capacity, left; /* left: steps that are not done */
  struct queue *queues;          /* sends by rank, receives by rank, computing */
  void *wide;                    /* memory for wide operands; the schedule owns it */
  struct reduction reduction;
  bool out_of_memory; /* a step is missing: the schedule must not run */
};

/* false: no memory. */
bool schedule_init(struct schedule *schedule, int ranks);
void schedule_free(struct schedule *schedule);

/* Sets schedule->wide. false: no memory, and schedule->out_of_memory is set. */
bool schedule_make_wide(struct schedule *schedule, size_t bytes);

static inline struct queue *schedule_sends(struct schedule *schedule, int peer)
{
  return &schedule->queues[peer];
}

static inline struct queue *schedule_receives(struct schedule *schedule, int peer)
{
  return &schedule->queues[schedule->ranks + peer];
}

static inline struct queue *schedule_computing(struct schedule *schedule)
{
  return &schedule->queues[2 * schedule->ranks];
}

/* Each adds a step that starts after the steps `after` and `also` (NO_STEP: none). Returns its
 * number. A message without bytes adds no step and returns NO_STEP: both ends know its size. */
int32_t add_send(struct schedule *schedule, int peer, const void *data, size_t bytes,
                 int32_t after);
int32_t add_receive(struct schedule *schedule, int peer, void *data, size_t bytes, int32_t after);
int32_t add_compute(struct schedule *schedule, enum step_kind kind, void *data, const void *from,
                    size_t count, int32_t after, int32_t also);

void add_copy(struct schedule *schedule, void *to, const void *from, size_t bytes);

/* Adds a signal to the computing: what was written to the own window can be read. Returns its
 * number, counted from the start of the operation, from 1. */
uint32_t add_signal(struct schedule *schedule);

/* Adds the last signal of an operation whose ranks give different numbers of them. */
void add_last_signal(struct schedule *schedule);

/* Computing goes on when that rank of the host has given this signal, counted from the start of the
 * operation; that of an operation before is negative, modulo 2^32. local_rank: see windows.h. */
void add_await(struct schedule *schedule, int local_rank, uint32_t signal);

/* The same for all other ranks of the host. */
void add_await_others(struct schedule *schedule, uint32_t signal);

/* The rank there, which has given a signal, must call the same operation and give `bytes` to this
 * rank. Precedes the last signal, because the others then begin the next operation. */
void add_match(struct schedule *schedule, int local_rank, size_t bytes);

/* Lets a message also wait for this step, or for none. */
void start_after(struct schedule *schedule, int32_t message, int32_t step);

/* The message lies in memory of the link (links.h). */
void mark_staged(struct schedule *schedule, int32_t step);

/* Whether the steps that this one waits for are done. */
bool step_may_start(const struct schedule *schedule, const struct step *step);

/* Carries out a step of computing. */
void step_compute(const struct schedule *schedule, const struct step *step);

#endif
