/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All_reduce and reduce for hosts with several ranks. The ranks of a host exchange data by their
 * windows (windows.h). Each of them reduces a share of each chunk: it folds the operands of its
 * host, exchanges the partial result with the ranks that have its local rank on the other hosts,
 * and puts the result into its window. The others take it there. Each byte crosses the network once
 * for each host and round. No link leads to the same host. Thakur, Rabenseifner and Gropp (2005)
 * call the parts reduce-scatter and all-gather.
 *
 * A chunk's operands and results may be replaced once all have read them. Two rules say so:
 * - Operands: all have folded the chunk when all have signaled its results.
 * - Results: all have taken them when all have signaled the operands of the chunk that follows in
 *   the same buffer, because each rank takes results before it gives those operands. In reduce, the
 *   root alone takes them.
 *
 * A tensor of up to LINK_SHORT bytes on one host is folded as a whole by each rank that takes the
 * result: it saves a signal. The order of additions is the same on all ranks, so the bits are, too.
 */
#include <stdlib.h>

#include "harp/collectives/plan_double.h"
#include "harp/collectives/plan_share.h"

struct sharing {
  struct plan *plan;
  struct windows *windows;
  bool takes;                                             /* this rank gets the results */
  struct harp_view chunk;                                 /* the one of take_chunk */
  size_t buffer;                                          /* its buffer */
  struct share *shares;                                   /* its shares, of each rank of the host */
  uint32_t given[WINDOW_BUFFERS], folded[WINDOW_BUFFERS]; /* signals of a buffer's chunk */
  uint8_t *wide;                                          /* partial results */
  size_t wide_bytes;                                      /* of one share */
  /* Of each buffer, for ranks of several hosts: */
  struct doubling doublings[WINDOW_BUFFERS];
  int32_t sent[WINDOW_BUFFERS][DOUBLING_MOST], stored[WINDOW_BUFFERS];
};

static void take_chunk(struct sharing *sharing, size_t number)
{
  const struct harp_view *all = sharing->plan->call->out;
  size_t at = number * WINDOW_CHUNK, left = all->bytes - at;
  sharing->chunk = (struct harp_view){(uint8_t *)all->data + at,
                                      left < WINDOW_CHUNK ? left : WINDOW_CHUNK};
  sharing->buffer = number % WINDOW_BUFFERS;
  share_equally(sharing->shares, sharing->windows->count, &sharing->plan->schedule->reduction,
                &sharing->chunk);
}

static size_t share_bytes(const struct share *share) { return share->count * share->size; }

/* Where a share's operands lie in each window. */
static size_t share_offset(const struct sharing *sharing, int local_rank)
{
  return (size_t)(sharing->shares[local_rank].data - (uint8_t *)sharing->chunk.data);
}

/* Gives our operands of the other ranks' shares. */
static void give_operands(struct sharing *sharing, size_t number)
{
  struct schedule *schedule = sharing->plan->schedule;
  const struct windows *windows = sharing->windows;
  take_chunk(sharing, number);
  plan_fill(sharing->plan);
  for (int local_rank = 0; local_rank < windows->count; local_rank++) {
    const struct share *share = &sharing->shares[local_rank];
    if (local_rank != windows->local_rank) {
      add_copy(schedule,
               windows->own->operands[sharing->buffer] + share_offset(sharing, local_rank),
               share->data, share_bytes(share));
    }
  }
  sharing->given[sharing->buffer] = add_signal(schedule);
}

/* The calls of all ranks on this host must match ours. They have given a signal. */
static void match_others(const struct sharing *sharing)
{
  for (int local_rank = 0; local_rank < sharing->windows->count; local_rank++) {
    if (local_rank != sharing->windows->local_rank) {
      add_match(sharing->plan->schedule, local_rank, sharing->plan->call->out->bytes);
    }
  }
}

/* Our partial result of the chunk: the operands of this host, from ours on. `wide` may be our
 * results, so all ranks must have taken the old ones before. */
static void fold_host(struct sharing *sharing, uint8_t *wide, int32_t after)
{
  struct schedule *schedule = sharing->plan->schedule;
  const struct windows *windows = sharing->windows;
  const struct share *own = &sharing->shares[windows->local_rank];
  add_await_others(schedule, sharing->given[sharing->buffer]);
  if (sharing->given[sharing->buffer] == 1) {
    match_others(sharing);
  }
  add_compute(schedule, STEP_LOAD, wide, own->data, own->count, after, NO_STEP);
  for (int i = 1; i < windows->count; i++) {
    int local_rank = (windows->local_rank + i) % windows->count;
    add_compute(schedule, STEP_FOLD, wide,
                windows->peers[local_rank].window->operands[sharing->buffer] +
                    share_offset(sharing, windows->local_rank),
                own->count, NO_STEP, NO_STEP);
  }
}

static void give_result(struct sharing *sharing, const void *wide, int32_t ready)
{
  struct schedule *schedule = sharing->plan->schedule;
  size_t count = sharing->shares[sharing->windows->local_rank].count, buffer = sharing->buffer;
  sharing->stored[buffer] = add_compute(
      schedule, STEP_STORE, sharing->windows->own->results[buffer], wide, count, ready, NO_STEP);
  sharing->folded[buffer] = add_signal(schedule);
}

/* Begins the exchange of our partial result with the other hosts. */
static void exchange(struct sharing *sharing)
{
  const struct windows *windows = sharing->windows;
  size_t buffer = sharing->buffer, count = sharing->shares[windows->local_rank].count;
  size_t partials = doubling_partials(windows->hosts);
  struct doubling *doubling = &sharing->doublings[buffer];
  *doubling = (struct doubling){
      .schedule = sharing->plan->schedule,
      .members = windows_cross_ranks(windows, windows->local_rank),
      .rank = windows->host,
      .size = windows->hosts,
      .count = count,
      .bytes = count * sharing->plan->schedule->reduction.wide_size,
      .partials = sharing->wide + buffer * partials * sharing->wide_bytes,
      .stride = sharing->wide_bytes,
      .sent = sharing->sent[buffer],
      .released = sharing->stored[buffer],
      .ready = NO_STEP, /* the fold is the last step of computing */
  };
  fold_host(sharing, doubling->partials, sharing->sent[buffer][0]);
  doubling->ready = schedule_computing(doubling->schedule)->tail;
  doubling_add(doubling);
}

/* Folds our share of a chunk. This is the result if there is one host. */
static void fold_chunk(struct sharing *sharing, size_t number)
{
  const struct reduction *reduction = &sharing->plan->schedule->reduction;
  take_chunk(sharing, number);
  if (sharing->windows->hosts > 1) {
    exchange(sharing);
    return;
  }
  uint8_t *results = sharing->windows->own->results[sharing->buffer];
  uint8_t *wide = reduction_is_plain(reduction) ? results : sharing->wide;
  fold_host(sharing, wide, NO_STEP);
  give_result(sharing, wide, NO_STEP);
}

static void finish_chunk(struct sharing *sharing, size_t number)
{
  take_chunk(sharing, number);
  const struct doubling *doubling = &sharing->doublings[sharing->buffer];
  if (sharing->windows->hosts > 1) {
    give_result(sharing, doubling_result(doubling), doubling->ready);
  }
}

/* A rank that takes none still waits for the signals, because of the operands. */
static void take_results(struct sharing *sharing, size_t number)
{
  struct schedule *schedule = sharing->plan->schedule;
  const struct windows *windows = sharing->windows;
  take_chunk(sharing, number);
  for (int i = 0; i < windows->count; i++) {
    int local_rank = (windows->local_rank + i) % windows->count;
    const struct share *share = &sharing->shares[local_rank];
    if (i > 0) {
      add_await(schedule, local_rank, sharing->folded[sharing->buffer]);
    }
    if (sharing->takes) {
      add_copy(schedule, share->data, windows->peers[local_rank].window->results[sharing->buffer],
               share_bytes(share));
    }
  }
}

static bool make_memory(struct sharing *sharing)
{
  const struct windows *windows = sharing->windows;
  const struct reduction *reduction = &sharing->plan->schedule->reduction;
  sharing->shares = calloc((size_t)windows->count, sizeof *sharing->shares);
  if (!sharing->shares) {
    sharing->plan->schedule->out_of_memory = true;
    return false;
  }
  take_chunk(sharing, 0);
  sharing->wide_bytes = sharing->shares[0].count * reduction->wide_size;
  bool direct = windows->hosts == 1 && reduction_is_plain(reduction);
  size_t shares = direct               ? 0
                  : windows->hosts > 1 ? WINDOW_BUFFERS * doubling_partials(windows->hosts)
                                       : 1;
  if (!schedule_make_wide(sharing->plan->schedule, shares * sharing->wide_bytes)) {
    return false;
  }
  sharing->wide = sharing->plan->schedule->wide;
  return true;
}

/* Folds the next chunk while one is exchanged with other hosts, or while others still fold it. */
static void reduce_chunks(struct sharing *sharing)
{
  size_t chunks = (sharing->plan->call->out->bytes + WINDOW_CHUNK - 1) / WINDOW_CHUNK;
  for (size_t number = 0; number < chunks && number < WINDOW_BUFFERS; number++) {
    give_operands(sharing, number);
  }
  for (size_t number = 0; number < chunks; number++) {
    if (number == 0) {
      fold_chunk(sharing, 0);
    }
    if (number + 1 < chunks) {
      fold_chunk(sharing, number + 1);
    }
    finish_chunk(sharing, number);
    take_results(sharing, number);
    if (number + WINDOW_BUFFERS < chunks) {
      give_operands(sharing, number + WINDOW_BUFFERS);
    }
  }
}

static void reduce_long(struct sharing *sharing)
{
  for (int buffer = 0; buffer < WINDOW_BUFFERS; buffer++) {
    sharing->stored[buffer] = NO_STEP;
    for (int i = 0; i < DOUBLING_MOST; i++) {
      sharing->sent[buffer][i] = NO_STEP;
    }
  }
  if (make_memory(sharing)) {
    reduce_chunks(sharing);
  }
  free(sharing->shares);
}

/* All ranks that take the result fold all operands. */
static void reduce_short(struct sharing *sharing)
{
  struct schedule *schedule = sharing->plan->schedule;
  const struct reduction *reduction = &schedule->reduction;
  const struct windows *windows = sharing->windows;
  const struct harp_view *view = sharing->plan->call->out;
  size_t count = view->bytes / reduction->size;
  bool plain = reduction_is_plain(reduction);
  if (!schedule_make_wide(schedule, plain ? 0 : count * reduction->wide_size)) {
    return;
  }
  void *wide = plain ? view->data : schedule->wide;
  add_copy(schedule, windows->own->shorts[schedule->number], view->data, view->bytes);
  add_await_others(schedule, add_signal(schedule));
  match_others(sharing);
  for (int local_rank = 0; sharing->takes && local_rank < windows->count; local_rank++) {
    add_compute(schedule, local_rank == 0 ? STEP_LOAD : STEP_FOLD, wide,
                windows->peers[local_rank].window->shorts[schedule->number], count, NO_STEP,
                NO_STEP);
  }
  if (sharing->takes) {
    add_compute(schedule, STEP_STORE, view->data, wide, count, NO_STEP, NO_STEP);
  }
  add_signal(schedule); /* the operands may be replaced */
}

void plan_windows(struct plan *plan)
{
  const struct harp_call *call = plan->call;
  struct sharing sharing = {.plan = plan,
                            .windows = plan->windows,
                            .takes = call->kind == HARP_ALL_REDUCE || call->peer == plan->rank};
  if (call->out->bytes == 0 || !plan_call(plan, call->out->bytes)) {
    return;
  }
  if (plan->windows->hosts == 1 && call->out->bytes <= LINK_SHORT) {
    reduce_short(&sharing);
  } else {
    reduce_long(&sharing);
  }
}
