/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of ranks that are all on one host, by their windows (windows.h): all but all_reduce
 * and reduce, which are in plan_windows.c. Each rank writes what it gives to its window, in chunks,
 * and the others copy or fold it from there. Either all of them read the same bytes, or each has a
 * part of the chunk.
 *
 * What one rank gives to another lies in memory of the operation if it is short, else in the
 * buffers of the window.
 *
 * In round r, a rank takes chunk r - AHEAD from the others, gives its own chunk r, and signals. So
 * signal r + 1 says that its chunk r can be read, and that it has read chunk r - AHEAD of the
 * others. A chunk may be replaced once all of its readers have said so. The chunks that are left
 * are taken before the last signal.
 *
 * A rank knows the sizes that it gives and takes itself. So the number of rounds may differ between
 * ranks, and the last signal has a number of its own. Two ranks that exchange a chunk both have its
 * round.
 */
#include <stddef.h>
#include <stdlib.h>

#include "harp/collectives/plan.h"

enum { AHEAD = WINDOW_BUFFERS / 2 };

/* What we exchange with one rank of the host. With ourselves: what we give to
 * ourselves. */
struct part {
  struct harp_view given, taken;
  bool matches; /* that rank must call what we call, also if it gives no bytes */
};

struct exchange {
  struct plan *plan;
  struct schedule *schedule;
  const struct windows *windows;
  struct part *parts; /* by local rank */
  bool same;          /* all readers of a rank get the same bytes */
  size_t part_bytes;  /* of a chunk, for one reader */
  size_t short_bytes; /* the most of what is short, for one reader */
  size_t rounds;
};

static struct part part_of(const struct plan *plan, int rank)
{
  static const struct harp_view none;
  const struct harp_call *call = plan->call;
  bool from_us = call->peer == plan->rank, from_them = call->peer == rank;
  switch (call->kind) {
  case HARP_BROADCAST:
    return (struct part){from_us ? *call->out : none, from_them ? *call->out : none, from_them};
  case HARP_SCATTER:
    return (struct part){from_us ? call->in[rank] : none, from_them ? *call->out : none, from_them};
  case HARP_GATHER:
    return (struct part){from_them ? *call->in : none, from_us ? call->out[rank] : none, from_us};
  case HARP_ALL_GATHER: return (struct part){*call->in, call->out[rank], true};
  case HARP_ALL_TO_ALL: return (struct part){call->in[rank], call->out[rank], true};
  case HARP_REDUCE_SCATTER: return (struct part){call->in[rank], *call->out, true};
  default: return (struct part){none, none, true}; /* a barrier */
  }
}

static size_t chunks(const struct exchange *exchange, const struct harp_view *view)
{
  return (view->bytes + exchange->part_bytes - 1) / exchange->part_bytes;
}

/* The part of a view that a chunk has; without bytes behind its end. */
static struct harp_view cut(const struct exchange *exchange, const struct harp_view *view,
                            size_t chunk)
{
  size_t at = chunk * exchange->part_bytes;
  if (at >= view->bytes) {
    return (struct harp_view){NULL, 0};
  }
  size_t left = view->bytes - at;
  return (struct harp_view){(uint8_t *)view->data + at,
                            left < exchange->part_bytes ? left : exchange->part_bytes};
}

static bool is_short(const struct exchange *exchange, const struct harp_view *view)
{
  return view->bytes <= exchange->short_bytes;
}

/* Where a chunk of a view for a reader lies in a window, in bytes. */
static size_t part_offset(const struct exchange *exchange, int reader, const struct harp_view *view,
                          size_t chunk)
{
  size_t part = exchange->same ? 0 : (size_t)reader;
  if (is_short(exchange, view)) {
    return offsetof(struct window, shorts) + exchange->schedule->number * WINDOW_SHORT +
           part * exchange->short_bytes;
  }
  return offsetof(struct window, operands) + chunk % WINDOW_BUFFERS * WINDOW_CHUNK +
         part * exchange->part_bytes;
}

/* The readers of the chunk that was in the buffer have taken it. */
static void await_readers(struct exchange *exchange, size_t chunk)
{
  for (int local_rank = 0; chunk >= WINDOW_BUFFERS && local_rank < exchange->windows->count;
       local_rank++) {
    if (local_rank != exchange->windows->local_rank &&
        cut(exchange, &exchange->parts[local_rank].given, chunk).bytes) {
      add_await(exchange->schedule, local_rank, (uint32_t)(chunk - WINDOW_BUFFERS + AHEAD + 1));
    }
  }
}

static void give(struct exchange *exchange, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  await_readers(exchange, chunk);
  for (int local_rank = 0; local_rank < windows->count; local_rank++) {
    const struct harp_view *whole = &exchange->parts[local_rank].given;
    struct harp_view given = cut(exchange, whole, chunk);
    if (local_rank == windows->local_rank || given.bytes == 0) {
      continue;
    }
    if (!is_short(exchange, whole)) {
      plan_fill(exchange->plan);
    }
    add_copy(exchange->schedule,
             (uint8_t *)windows->own + part_offset(exchange, local_rank, whole, chunk), given.data,
             given.bytes);
    if (exchange->same) {
      return;
    }
  }
}

/* What a rank of the host gives to us in a chunk. */
static const void *read_from(struct exchange *exchange, int local_rank, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  const struct part *part = &exchange->parts[local_rank];
  if (local_rank == windows->local_rank) {
    return cut(exchange, &part->given, chunk).data;
  }
  if (chunk == 0 ? part->matches : chunk < chunks(exchange, &part->taken)) {
    add_await(exchange->schedule, local_rank, (uint32_t)chunk + 1);
  }
  if (chunk == 0 && part->matches) {
    add_match(exchange->schedule, local_rank, part->taken.bytes);
  }
  return (const uint8_t *)windows->peers[local_rank].window +
         part_offset(exchange, windows->local_rank, &part->taken, chunk);
}

/* Takes a chunk from all ranks, from ourselves on. */
static void take(struct exchange *exchange, size_t chunk)
{
  struct schedule *schedule = exchange->schedule;
  const struct reduction *reduction = &schedule->reduction;
  bool folds = exchange->plan->call->kind == HARP_REDUCE_SCATTER;
  void *wide = schedule->wide;
  struct harp_view taken = {NULL, 0};
  for (int i = 0; i < exchange->windows->count; i++) {
    int local_rank = (exchange->windows->local_rank + i) % exchange->windows->count;
    const void *from = read_from(exchange, local_rank, chunk);
    taken = cut(exchange, &exchange->parts[local_rank].taken, chunk);
    if (folds && reduction_is_plain(reduction)) {
      wide = taken.data;
    }
    if (taken.bytes && folds) {
      add_compute(schedule, i == 0 ? STEP_LOAD : STEP_FOLD, wide, from,
                  taken.bytes / reduction->size, NO_STEP, NO_STEP);
    } else if (taken.bytes) {
      add_copy(schedule, taken.data, from, taken.bytes);
    }
  }
  if (taken.bytes && folds) {
    add_compute(schedule, STEP_STORE, taken.data, wide, taken.bytes / reduction->size, NO_STEP,
                NO_STEP);
  }
}

static void run(struct exchange *exchange)
{
  size_t rounds = exchange->rounds;
  for (size_t round = 0; round < rounds; round++) {
    if (round >= AHEAD) {
      take(exchange, round - AHEAD);
    }
    give(exchange, round);
    add_signal(exchange->schedule);
  }
  for (size_t chunk = rounds > AHEAD ? rounds - AHEAD : 0; chunk < rounds; chunk++) {
    take(exchange, chunk);
  }
  add_last_signal(exchange->schedule);
}

/* The first round tells the others that we have come, also if we give nothing. */
static void count_rounds(struct exchange *exchange)
{
  exchange->rounds = 1;
  for (int local_rank = 0; local_rank < exchange->windows->count; local_rank++) {
    const struct part *part = &exchange->parts[local_rank];
    size_t gives = chunks(exchange, &part->given), takes = chunks(exchange, &part->taken);
    size_t most = gives > takes ? gives : takes;
    exchange->rounds = most > exchange->rounds ? most : exchange->rounds;
  }
}

static bool make_memory(struct exchange *exchange)
{
  const struct reduction *reduction = &exchange->schedule->reduction;
  bool folds_wide = exchange->plan->call->kind == HARP_REDUCE_SCATTER &&
                    !reduction_is_plain(reduction);
  exchange->parts = calloc((size_t)exchange->windows->count, sizeof *exchange->parts);
  exchange->schedule->out_of_memory |= !exchange->parts;
  return exchange->parts &&
         (!folds_wide ||
          schedule_make_wide(exchange->schedule,
                             exchange->part_bytes / reduction->size * reduction->wide_size));
}

void plan_exchange(struct plan *plan)
{
  const struct windows *windows = plan->windows;
  int kind = plan->call->kind;
  bool same = kind == HARP_BROADCAST || kind == HARP_GATHER || kind == HARP_ALL_GATHER;
  size_t readers = same ? 1 : (size_t)windows->count;
  struct exchange exchange = {
      .plan = plan,
      .schedule = plan->schedule,
      .windows = windows,
      .same = same,
      .part_bytes = WINDOW_CHUNK / readers / 64 * 64,
      .short_bytes = WINDOW_SHORT / readers / 64 * 64,
  };
  struct window_call *call = plan_call(plan, 0);
  if (call && make_memory(&exchange)) {
    for (int local_rank = 0; local_rank < windows->count; local_rank++) {
      exchange.parts[local_rank] = part_of(plan, windows->peers[local_rank].rank);
      call->gives[local_rank] = exchange.parts[local_rank].given.bytes;
    }
    count_rounds(&exchange);
    run(&exchange);
  }
  free(exchange.parts);
}
