/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's rings with the Simple protocol: all_reduce, reduce_scatter, all_gather and broadcast.
 *
 * A message is processed in loops, in each of which every rank owns a chunk of at most two steps.
 * Each rank sends one chunk in a round to its successor, in slices of one step. It is the chunk
 * that the rank received in the round before. In all_reduce, rank r sends chunk r - s in round s of
 * 2 (N - 1). The first N - 1 rounds sum up, and the others distribute the sums. reduce_scatter has
 * only the rounds that sum up, and all_gather only those that distribute. The result of
 * reduce_scatter is block r, so rank r begins with chunk r - 1. broadcast has one chunk, which goes
 * from rank 0 to its successor and on to the last rank. A rank with an empty chunk sends 0 bytes.
 *
 * all_gather and broadcast work in place: rank r has its input in its part of the output.
 *
 * Memory that a send may still read is never written. Input is constant. Partial sums stay in the
 * staging buffer that received them until they are sent. Output is written once per iteration.
 */
#include "harp/bench/operation.h"
#include "harp/bench/pattern.h"
#include "harp/bench/signals.h"

#include <stdlib.h>
#include <string.h>

enum {
  INPUT,
  OUTPUT,
  STAGING, /* regions */
  SLICES_PER_CHUNK = 2,
  /* As NCCL_STEPS. SLICES_PER_CHUNK + 1 is enough to prevent a deadlock of the ring. */
  STAGING_BUFFERS = 8,
  ROOT = 0, /* of broadcast */
};

/* One message, as its sender or its receiver sees it. */
struct slice {
  size_t offset, size; /* position in input, or in output where this rank sums nothing; bytes */
  size_t result;       /* position of its sum in output */
  uint32_t round;      /* a send of round 0 depends on no receive */
  uint32_t lag;        /* a later send depends on the receive that is `lag` messages earlier */
  uint64_t staged;     /* number of earlier staged receives in the iteration */
};

struct plan {
  uint64_t staged; /* messages that use staging */
  struct slice *send, *receive;
  uint64_t *staged_at; /* index of the receive that was staged k-th */
};

struct loop {
  size_t base;  /* position in the message, or in each block */
  size_t chunk; /* bytes of the largest chunk */
  size_t next;  /* base of the next loop */
};

static bool has_blocks(const struct pass *pass) { return pass->operation->blocks; }

static bool has_root(const struct pass *pass) { return pass->operation->root >= 0; }

/* Rounds that sum up; they are the first ones. */
static uint32_t summing(const struct pass *pass)
{
  return pass->operation->reduces ? (uint32_t)pass->ranks - 1 : 0;
}

static uint32_t rounds(const struct pass *pass)
{
  if (has_root(pass)) {
    return 1;
  }
  return (has_blocks(pass) ? 1 : 2) * ((uint32_t)pass->ranks - 1);
}

static size_t slices_of(const struct pass *pass, const struct loop *loop)
{
  return loop->chunk ? (loop->chunk + pass->step - 1) / pass->step : 1;
}

static struct loop loop_at(const struct pass *pass, size_t base)
{
  /* The ranks share what is left, unless it is one block, or a root's message. */
  size_t sharers = has_blocks(pass) || has_root(pass) ? 1 : (size_t)pass->ranks;
  size_t unit = pass->datatype->size, count = (pass->size - base) / unit;
  size_t chunk = (count + sharers - 1) / sharers * unit;
  size_t most = SLICES_PER_CHUNK * pass->step;
  if (chunk > most) {
    chunk = most;
  }
  return (struct loop){.base = base, .chunk = chunk, .next = base + chunk * sharers};
}

/* Returns the bytes of a range that starts at offset and ends at limit at the latest. */
static size_t clamp(size_t offset, size_t length, size_t limit)
{
  if (offset >= limit) {
    return 0;
  }
  return length < limit - offset ? length : limit - offset;
}

static struct slice slice_of(const struct pass *pass, const struct loop *loop, int chunk,
                             size_t index, uint32_t round)
{
  size_t block = has_blocks(pass) ? (size_t)chunk * pass->size : 0;
  size_t start = loop->base + (has_blocks(pass) ? 0 : (size_t)chunk * loop->chunk);
  size_t end = start + clamp(start, loop->chunk, pass->size);
  size_t place = start + index * pass->step, size = clamp(place, pass->step, end);
  if (!size) {
    place = block = 0; /* a valid position, also if the chunk is empty */
  }
  return (struct slice){
      .offset = block + place,
      .size = size,
      .result = place,
      .round = round,
      .lag = (uint32_t)slices_of(pass, loop),
  };
}

static uint64_t count_messages(const struct pass *pass)
{
  uint64_t messages = 0;
  for (size_t base = 0; base < pass->size;) {
    struct loop loop = loop_at(pass, base);
    messages += rounds(pass) * slices_of(pass, &loop);
    base = loop.next;
  }
  return messages;
}

static bool sums_up(const struct pass *pass, const struct slice *slice)
{
  return slice->round < summing(pass);
}

/* Returns the chunk that this rank sends in a round. */
static int chunk_sent(const struct pass *pass, uint32_t round)
{
  int first = pass->rank - (has_blocks(pass) && pass->operation->reduces ? 1 : 0);
  return (first - (int)round + 2 * pass->ranks) % pass->ranks;
}

static void plan_round(struct pass *pass, struct plan *plan, const struct loop *loop,
                       uint32_t round)
{
  int sent = chunk_sent(pass, round), received = (sent + pass->ranks - 1) % pass->ranks;
  for (size_t index = 0; index < slices_of(pass, loop); index++) {
    struct slice *slice = &plan->receive[pass->messages];
    plan->send[pass->messages] = slice_of(pass, loop, sent, index, round);
    *slice = slice_of(pass, loop, received, index, round);
    if (sums_up(pass, slice)) {
      plan->staged_at[plan->staged] = pass->messages;
      slice->staged = plan->staged++;
    }
    pass->messages++;
  }
}

/* The root sends at once. The others pass on what they have received as the same message. */
static void plan_broadcast(struct pass *pass, struct plan *plan, const struct loop *loop)
{
  for (size_t index = 0; index < slices_of(pass, loop); index++) {
    struct slice slice = slice_of(pass, loop, 0, index, pass->rank != ROOT);
    slice.lag = 0;
    plan->send[pass->messages] = plan->receive[pass->messages] = slice;
    pass->messages++;
  }
}

static void plan_loop(struct pass *pass, struct plan *plan, const struct loop *loop)
{
  if (has_root(pass)) {
    plan_broadcast(pass, plan, loop);
  } else {
    for (uint32_t round = 0; round < rounds(pass); round++) {
      plan_round(pass, plan, loop, round);
    }
  }
}

static void finish(struct pass *pass)
{
  struct plan *plan = pass->plan;
  if (plan) {
    free(plan->send);
    free(plan->receive);
    free(plan->staged_at);
  }
  free(plan);
  pass->plan = NULL;
}

/* Blocks of the input and of the output on this rank; they lie one behind the other. */
static int blocks_in(const struct pass *pass, int region)
{
  bool many = has_blocks(pass) && (region == INPUT) == pass->operation->reduces;
  return many ? pass->ranks : 1;
}

static struct origin origin_of(const struct pass *pass, int block, uint32_t iteration)
{
  return (struct origin){
      .rank = (uint32_t)pass->rank,
      .ranks = (uint32_t)pass->ranks,
      .iteration = iteration,
      .offset = (uint64_t)block * pass->block + pass->offset,
  };
}

static void fill_input(struct pass *pass, uint32_t iteration)
{
  for (int block = 0; block < blocks_in(pass, INPUT); block++) {
    struct origin origin = origin_of(pass, block, iteration);
    pass->datatype->fill(pass->regions[INPUT].data + (size_t)block * pass->size, pass->size,
                         &origin);
  }
}

/* Returns the part of the output that begins as this rank's input. NULL: there is none. */
static uint8_t *own_part(const struct pass *pass)
{
  if (pass->operation->reduces || (has_root(pass) && pass->rank != ROOT)) {
    return NULL;
  }
  return pass->regions[OUTPUT].data + (has_blocks(pass) ? (size_t)pass->rank * pass->size : 0);
}

static void begin_iteration(struct pass *pass, uint32_t iteration)
{
  if (!pass->verify) {
    return;
  }
  signals_pause(pass->pause_ms);
  memset(pass->regions[OUTPUT].data, PATTERN_POISON, (size_t)blocks_in(pass, OUTPUT) * pass->size);
  if (pass->operation->reduces) {
    fill_input(pass, iteration);
  } else if (own_part(pass)) {
    pattern_fill(own_part(pass), pass->size, (uint32_t)pass->rank, iteration, pass->offset);
  }
}

static int begin(struct pass *pass)
{
  uint64_t messages = count_messages(pass);
  struct plan *plan = calloc(1, sizeof(*plan));
  pass->plan = plan;
  if (!plan || !(plan->send = calloc(messages, sizeof(*plan->send))) ||
      !(plan->receive = calloc(messages, sizeof(*plan->receive))) ||
      !(plan->staged_at = calloc(messages, sizeof(*plan->staged_at)))) {
    return -1;
  }
  for (size_t base = 0; base < pass->size;) {
    struct loop loop = loop_at(pass, base);
    plan_loop(pass, plan, &loop);
    base = loop.next;
  }
  pass_set_totals(pass);
  begin_iteration(pass, 0);
  return 0;
}

static uint8_t *staging(const struct pass *pass, const struct slice *received)
{
  return pass->regions[STAGING].data + received->staged % STAGING_BUFFERS * pass_stride(pass);
}

static void set(struct transfer *transfer, const struct region *region, uint8_t *data, size_t size)
{
  *transfer = (struct transfer){.region = region, .data = data, .size = size};
}

static bool send_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  uint64_t number = index % pass->messages;
  const struct slice *slice = &plan->send[number];
  if (!pass_may_begin(pass, index / pass->messages) ||
      (slice->round > 0 && pass->pump.receive.done <= index - slice->lag)) {
    return false;
  }
  struct region *regions = pass->regions;
  if (!sums_up(pass, slice)) {
    set(transfer, &regions[OUTPUT], regions[OUTPUT].data + slice->offset, slice->size);
  } else if (slice->round == 0) {
    set(transfer, &regions[INPUT], regions[INPUT].data + slice->offset, slice->size);
  } else {
    set(transfer, &regions[STAGING], staging(pass, &plan->receive[number - slice->lag]),
        slice->size);
  }
  return true;
}

/* Returns true if the last user of the staging buffer no longer needs it: its sum was sent, or
 * (in the last summing round) was written to the output. */
static bool staging_is_free(const struct pass *pass, uint64_t first, const struct slice *slice)
{
  const struct plan *plan = pass->plan;
  if (slice->staged < STAGING_BUFFERS) {
    return true;
  }
  uint64_t number = plan->staged_at[slice->staged - STAGING_BUFFERS];
  const struct slice *user = &plan->receive[number];
  if (pass->pump.receive.done <= first + number) {
    return false;
  }
  return user->round == summing(pass) - 1 || pass->pump.send.done > first + number + user->lag;
}

static bool receive_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  uint64_t iteration = index / pass->messages;
  const struct slice *slice = &plan->receive[index % pass->messages];
  if (!pass_may_begin(pass, iteration)) {
    return false;
  }
  if (!sums_up(pass, slice)) {
    set(transfer, &pass->regions[OUTPUT], pass->regions[OUTPUT].data + slice->offset, slice->size);
    return true;
  }
  if (!staging_is_free(pass, iteration * pass->messages, slice)) {
    return false;
  }
  uint8_t *data = staging(pass, slice);
  if (pass->verify) {
    memset(data, PATTERN_POISON, pass_stride(pass));
  }
  set(transfer, &pass->regions[STAGING], data, pass_stride(pass));
  return true;
}

static void sum_up(struct pass *pass, const struct slice *slice)
{
  void *partial = staging(pass, slice);
  const void *own = pass->regions[INPUT].data + slice->offset;
  bool last = slice->round == summing(pass) - 1;
  pass->datatype->add(last ? pass->regions[OUTPUT].data + slice->result : partial, partial, own,
                      slice->size);
}

static uint64_t check_output(const struct pass *pass, uint32_t iteration)
{
  const uint8_t *output = pass->regions[OUTPUT].data;
  uint64_t wrong = 0;
  if (pass->operation->reduces) {
    struct origin origin = origin_of(pass, has_blocks(pass) ? pass->rank : 0, iteration);
    return pass->datatype->check_sum(output, pass->size, &origin);
  }
  for (int block = 0; block < blocks_in(pass, OUTPUT); block++) {
    wrong += pattern_check(output + (size_t)block * pass->size, pass->size,
                           has_root(pass) ? ROOT : (uint32_t)block, iteration, pass->offset);
  }
  return wrong;
}

static void end_iteration_if_over(struct pass *pass)
{
  uint64_t done = pass_done(pass);
  if (!pass->verify || done == pass->checked || done % pass->messages) {
    return;
  }
  uint32_t iteration = (uint32_t)(done / pass->messages - 1);
  pass->checked = done;
  pass->wrong += check_output(pass, iteration);
  if (iteration + 1 < pass->iterations) {
    begin_iteration(pass, iteration + 1);
  }
}

static void sent(void *user, uint64_t index) { end_iteration_if_over(user); }

static void received(void *user, uint64_t index, size_t size)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  const struct slice *slice = &plan->receive[index % pass->messages];
  uint8_t *data = sums_up(pass, slice) ? staging(pass, slice)
                                       : pass->regions[OUTPUT].data + slice->offset;
  if (size != slice->size) {
    pass->wrong++;
  }
  pass_inject(pass, data, slice->size);
  if (sums_up(pass, slice)) {
    sum_up(pass, slice);
  }
  end_iteration_if_over(pass);
}

static void sizes(const struct pass *pass, size_t size, size_t regions[OPERATION_REGIONS])
{
  bool reduces = pass->operation->reduces;
  regions[INPUT] = reduces ? (size_t)blocks_in(pass, INPUT) * size : 0;
  regions[OUTPUT] = (size_t)blocks_in(pass, OUTPUT) * size;
  regions[STAGING] = reduces ? pass_buffers(pass, STAGING_BUFFERS) : 0;
}

static bool all_but_last(int rank, int ranks) { return rank != ranks - 1; }

static bool all_but_root(int rank, int ranks) { return rank != ROOT; }

/* As in nccl-tests. */
static double twice_share_of_others(int ranks) { return 2.0 * (ranks - 1) / ranks; }

static double twice_to_others(int ranks, size_t size) { return 2.0 * (ranks - 1) * (double)size; }

#define RING                                                                              \
  .outstanding = 4, .step = 1024 * 1024, .divides = true, .sizes = sizes, .begin = begin, \
  .finish = finish,                                                                       \
  .callbacks = {.send = send_next, .receive = receive_next, .sent = sent, .received = received}

const struct operation operation_all_reduce = {
    .name = "all_reduce",
    .datatype = &datatype_uint32,
    .redop = "sum",
    .root = -1,
    .reduces = true,
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bus_factor = twice_share_of_others,
    .bytes_moved = twice_to_others,
    RING,
};

const struct operation operation_reduce_scatter = {
    .name = "reduce_scatter",
    .datatype = &datatype_uint32,
    .redop = "sum",
    .root = -1,
    .reduces = true,
    .blocks = true,
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bus_factor = operation_factor_of_others,
    .bytes_moved = operation_bytes_to_others,
    RING,
};

const struct operation operation_all_gather = {
    .name = "all_gather",
    .datatype = &datatype_uint8,
    .redop = "none",
    .root = -1,
    .blocks = true,
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bus_factor = operation_factor_of_others,
    .bytes_moved = operation_bytes_to_others,
    RING,
};

const struct operation operation_broadcast = {
    .name = "broadcast",
    .datatype = &datatype_uint8,
    .redop = "none",
    .root = ROOT,
    .sends = all_but_last,
    .receives = all_but_root,
    .bus_factor = operation_factor_one,
    .bytes_moved = operation_bytes_to_others,
    RING,
};
