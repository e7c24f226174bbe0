/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations by windows (windows.h): all but all_reduce and reduce, which are in plan_windows.c.
 * Each rank writes what it gives to its window, in chunks, and the others of its host copy or fold
 * it from there. Either all of them read the same bytes, or each has a part of the chunk. If there
 * are several hosts, plan_across.c adds messages between them.
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
#include "harp/collectives/plan_exchange.h"

#include <stddef.h>
#include <stdlib.h>

enum { AHEAD = WINDOW_BUFFERS / 2 };

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

/* Chunks of a segment, of those that it alternates with, too. */
static size_t chunks(const struct exchange *exchange, const struct harp_view *view)
{
  return (view->bytes + exchange->part_bytes - 1) / exchange->part_bytes *
         (size_t)exchange->segments;
}

struct harp_view exchange_cut(const struct exchange *exchange, const struct harp_view *view,
                              size_t chunk)
{
  size_t at = chunk / (size_t)exchange->segments * exchange->part_bytes;
  if (at >= view->bytes) {
    return (struct harp_view){NULL, 0};
  }
  size_t left = view->bytes - at;
  return (struct harp_view){(uint8_t *)view->data + at,
                            left < exchange->part_bytes ? left : exchange->part_bytes};
}

/* What we give to a rank of the host in a chunk, or take from it. */
static struct harp_view part_in(const struct exchange *exchange, int local_rank, bool gives,
                                size_t chunk)
{
  const struct part *part = &exchange_parts(exchange,
                                            local_rank)[exchange_segment(exchange, chunk)];
  return exchange_cut(exchange, gives ? &part->given : &part->taken, chunk);
}

/* Bytes of the first segments of what we give to a rank of the host, or take from it. */
static size_t sum_up(const struct exchange *exchange, int local_rank, bool gives, int segments)
{
  const struct part *parts = exchange_parts(exchange, local_rank);
  size_t bytes = 0;
  for (int segment = 0; segment < segments; segment++) {
    bytes += gives ? parts[segment].given.bytes : parts[segment].taken.bytes;
  }
  return bytes;
}

static size_t all_bytes(const struct exchange *exchange, int local_rank, bool gives)
{
  return sum_up(exchange, local_rank, gives, exchange->segments);
}

static bool is_short(const struct exchange *exchange, int local_rank, bool gives)
{
  return all_bytes(exchange, local_rank, gives) <= exchange->short_bytes;
}

/* Where a chunk lies in our window for a rank of the host, or in its window for us, in bytes. */
static size_t part_offset(const struct exchange *exchange, int local_rank, bool gives, size_t chunk)
{
  int reader = gives ? local_rank : exchange->windows->local_rank;
  size_t part = exchange->same ? 0 : (size_t)reader;
  if (is_short(exchange, local_rank, gives)) {
    return offsetof(struct window, shorts) + exchange->schedule->number * WINDOW_SHORT +
           part * exchange->short_bytes +
           sum_up(exchange, local_rank, gives, exchange_segment(exchange, chunk)) +
           chunk / (size_t)exchange->segments * exchange->part_bytes;
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
        part_in(exchange, local_rank, true, chunk).bytes) {
      add_await(exchange->schedule, local_rank, (uint32_t)(chunk - WINDOW_BUFFERS + AHEAD + 1));
    }
  }
}

static void give(struct exchange *exchange, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  int32_t received = across_give(exchange, chunk);
  await_readers(exchange, chunk);
  for (int local_rank = 0; local_rank < windows->count; local_rank++) {
    struct harp_view given = part_in(exchange, local_rank, true, chunk);
    if (local_rank == windows->local_rank || given.bytes == 0) {
      continue;
    }
    if (!is_short(exchange, local_rank, true)) {
      plan_fill(exchange->plan);
    }
    add_compute(exchange->schedule, STEP_COPY,
                (uint8_t *)windows->own + part_offset(exchange, local_rank, true, chunk),
                given.data, given.bytes, received, NO_STEP);
    if (exchange->same) {
      return;
    }
  }
}

/* What a rank of the host gives to us in a chunk. */
static const void *read_from(struct exchange *exchange, int local_rank, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  bool matches = exchange_parts(exchange, local_rank)->matches;
  if (local_rank == windows->local_rank) {
    return part_in(exchange, local_rank, true, chunk).data;
  }
  if (chunk == 0 ? matches : part_in(exchange, local_rank, false, chunk).bytes > 0) {
    add_await(exchange->schedule, local_rank, (uint32_t)chunk + 1);
  }
  if (chunk == 0 && matches) {
    add_match(exchange->schedule, local_rank, all_bytes(exchange, local_rank, false));
  }
  return (const uint8_t *)windows->peers[local_rank].window +
         part_offset(exchange, local_rank, false, chunk);
}

/* The ranks of the host, from ourselves on. */
static int local_rank_after(const struct exchange *exchange, int distance)
{
  return (exchange->windows->local_rank + distance) % exchange->windows->count;
}

static void take_bytes(struct exchange *exchange, size_t chunk)
{
  for (int i = 0; i < exchange->windows->count; i++) {
    int local_rank = local_rank_after(exchange, i);
    const void *from = read_from(exchange, local_rank, chunk);
    struct harp_view taken = part_in(exchange, local_rank, false, chunk);
    if (taken.bytes) {
      add_copy(exchange->schedule, taken.data, from, taken.bytes);
    }
  }
  across_take(exchange, chunk);
}

static void take_sum(struct exchange *exchange, size_t chunk)
{
  struct schedule *schedule = exchange->schedule;
  const struct reduction *reduction = &schedule->reduction;
  struct harp_view taken = part_in(exchange, exchange->windows->local_rank, false, chunk);
  size_t count = taken.bytes / reduction->size;
  int32_t after;
  void *partial = across_partial(exchange, chunk, &after);
  if (!partial) {
    partial = reduction_is_plain(reduction) ? taken.data : schedule->wide;
  }
  for (int i = 0; i < exchange->windows->count; i++) {
    const void *from = read_from(exchange, local_rank_after(exchange, i), chunk);
    if (count) {
      add_compute(schedule, i == 0 ? STEP_LOAD : STEP_FOLD, partial, from, count, after, NO_STEP);
    }
  }
  if (count && across_fold(exchange, chunk, partial, count)) {
    add_compute(schedule, STEP_STORE, taken.data, partial, count, NO_STEP, NO_STEP);
  }
}

static void take(struct exchange *exchange, size_t chunk)
{
  if (exchange->plan->call->kind == HARP_REDUCE_SCATTER) {
    take_sum(exchange, chunk);
  } else {
    take_bytes(exchange, chunk);
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
  for (int i = 0; i < exchange->windows->count * exchange->segments; i++) {
    const struct part *part = &exchange->parts[i];
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
  exchange->parts = calloc((size_t)(exchange->windows->count * exchange->segments),
                           sizeof *exchange->parts);
  exchange->schedule->out_of_memory |= !exchange->parts;
  return exchange->parts && across_init(exchange) &&
         (!folds_wide ||
          schedule_make_wide(exchange->schedule,
                             exchange->part_bytes / reduction->size * reduction->wide_size));
}

static void find_parts(struct exchange *exchange)
{
  const struct windows *windows = exchange->windows;
  exchange->schedule->call->sizes = across_sizes(exchange->plan);
  for (int local_rank = 0; local_rank < windows->count; local_rank++) {
    for (int segment = 0; segment < exchange->segments; segment++) {
      exchange->parts[local_rank * exchange->segments + segment] =
          windows->hosts == 1 ? part_of(exchange->plan, windows->peers[local_rank].rank)
                              : across_part(exchange->plan, local_rank, segment);
    }
    exchange->schedule->call->gives[local_rank] = all_bytes(exchange, local_rank, true);
  }
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
      .segments = across_segments(plan),
      .same = same,
      .part_bytes = WINDOW_CHUNK / readers / 64 * 64,
      .short_bytes = WINDOW_SHORT / readers / 64 * 64,
  };
  if (plan_call(plan, 0) && make_memory(&exchange)) {
    find_parts(&exchange);
    count_rounds(&exchange);
    run(&exchange);
  }
  free(exchange.parts);
  free(exchange.staged);
}
