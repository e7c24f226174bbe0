/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce: NCCL's ring with the Simple protocol, summing uint32.
 *
 * The input is processed in loops of at most two steps per rank. In a loop every rank owns one
 * chunk. In round s of 2 (N - 1) rounds, rank r sends chunk r - s to its successor, in slices of
 * one step. The first N - 1 rounds sum up; the others distribute the sums. A rank with an empty
 * chunk sends 0 bytes. Round s can send a slice when round s - 1 has received the same slice.
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
};

/* One message, as its sender or its receiver sees it. */
struct slice {
  size_t offset, size; /* position in input and output, bytes */
  uint32_t round;
  uint32_t twins;  /* slices per round: this message depends on the one `twins` earlier */
  uint64_t staged; /* number of earlier staged receives in the iteration */
};

struct plan {
  uint64_t messages; /* per iteration and direction */
  uint64_t staged;   /* messages that use staging */
  struct slice *send, *receive;
  uint64_t *staged_at; /* index of the receive that was staged k-th */
};

struct loop {
  size_t base, chunk, end; /* bytes */
};

static size_t slices_of(const struct pass *pass, const struct loop *loop)
{
  return loop->chunk ? (loop->chunk + pass->step - 1) / pass->step : 1;
}

static struct loop loop_at(const struct pass *pass, size_t base)
{
  size_t count = (pass->size - base) / sizeof(uint32_t), ranks = (size_t)pass->ranks;
  size_t chunk = (count + ranks - 1) / ranks * sizeof(uint32_t);
  size_t most = SLICES_PER_CHUNK * pass->step;
  return (struct loop){.base = base, .chunk = chunk < most ? chunk : most, .end = pass->size};
}

/* Returns the bytes of a range that starts at offset and ends at limit at the latest. */
static size_t clamp(size_t offset, size_t length, size_t limit)
{
  if (offset >= limit)
    return 0;
  return length < limit - offset ? length : limit - offset;
}

static struct slice slice_of(const struct pass *pass, const struct loop *loop, int chunk,
                             size_t index, uint32_t round)
{
  size_t start = loop->base + (size_t)chunk * loop->chunk;
  size_t end = start + clamp(start, loop->chunk, loop->end);
  size_t offset = start + index * pass->step;
  struct slice slice = {
      .offset = offset,
      .size = clamp(offset, pass->step, end),
      .round = round,
      .twins = (uint32_t)slices_of(pass, loop),
  };
  if (!slice.size)
    slice.offset = 0; /* a valid position, also if the chunk is empty */
  return slice;
}

static int rounds(const struct pass *pass) { return 2 * (pass->ranks - 1); }

static uint64_t count_messages(const struct pass *pass)
{
  uint64_t messages = 0;
  for (size_t base = 0; base < pass->size;) {
    struct loop loop = loop_at(pass, base);
    messages += (uint64_t)rounds(pass) * slices_of(pass, &loop);
    base += loop.chunk * (size_t)pass->ranks;
  }
  return messages;
}

static bool sums_up(const struct pass *pass, const struct slice *slice)
{
  return slice->round < (uint32_t)pass->ranks - 1;
}

static void plan_loop(struct pass *pass, struct plan *plan, const struct loop *loop)
{
  for (int round = 0; round < rounds(pass); round++) {
    int sent = ((pass->rank - round) % pass->ranks + pass->ranks) % pass->ranks;
    int received = (sent + pass->ranks - 1) % pass->ranks;
    for (size_t index = 0; index < slices_of(pass, loop); index++) {
      struct slice *slice = &plan->receive[plan->messages];
      plan->send[plan->messages] = slice_of(pass, loop, sent, index, (uint32_t)round);
      *slice = slice_of(pass, loop, received, index, (uint32_t)round);
      if (sums_up(pass, slice)) {
        plan->staged_at[plan->staged] = plan->messages;
        slice->staged = plan->staged++;
      }
      plan->messages++;
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

static void begin_iteration(struct pass *pass, uint32_t iteration)
{
  if (!pass->verify)
    return;
  signals_pause(pass->pause_ms);
  pattern_fill(pass->regions[INPUT].data, pass->size, (uint32_t)pass->rank, iteration,
               pass->offset);
  memset(pass->regions[OUTPUT].data, PATTERN_POISON, pass->size);
}

static int begin(struct pass *pass)
{
  uint64_t messages = count_messages(pass);
  struct plan *plan = calloc(1, sizeof(*plan));
  pass->plan = plan;
  if (!plan || !(plan->send = calloc(messages, sizeof(*plan->send))) ||
      !(plan->receive = calloc(messages, sizeof(*plan->receive))) ||
      !(plan->staged_at = calloc(messages, sizeof(*plan->staged_at))))
    return -1;
  for (size_t base = 0; base < pass->size;) {
    struct loop loop = loop_at(pass, base);
    plan_loop(pass, plan, &loop);
    base += loop.chunk * (size_t)pass->ranks;
  }
  uint64_t all = pass->warmup + pass->iterations;
  pass->pump.send.total = pass->pump.receive.total = all * messages;
  pass->pump.warm_send = pass->pump.warm_receive = pass->warmup * messages;
  begin_iteration(pass, 0);
  return 0;
}

static uint8_t *staging(const struct pass *pass, const struct slice *received)
{
  return pass->regions[STAGING].data + received->staged % STAGING_BUFFERS * pass_stride(pass);
}

/* An iteration begins when the previous one is complete in both directions, on all channels: as
 * in NCCL, where a kernel serves all channels. */
static bool has_begun(const struct pass *pass, uint64_t iteration)
{
  for (unsigned i = 0; i < pass->channel_count; i++) {
    const struct pass *channel = &pass->channels[i];
    uint64_t before = iteration * ((const struct plan *)channel->plan)->messages;
    if (channel->pump.send.done < before || channel->pump.receive.done < before)
      return false;
  }
  return true;
}

static void set(struct transfer *transfer, const struct region *region, uint8_t *data, size_t size)
{
  *transfer = (struct transfer){.region = region, .data = data, .size = size};
}

static bool send_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  uint64_t iteration = index / plan->messages, number = index % plan->messages;
  const struct slice *slice = &plan->send[number];
  if (!has_begun(pass, iteration) ||
      (slice->round > 0 && pass->pump.receive.done <= index - slice->twins))
    return false;
  struct region *regions = pass->regions;
  const struct slice *twin = &plan->receive[number - (slice->round ? slice->twins : 0)];
  if (slice->round == 0)
    set(transfer, &regions[INPUT], regions[INPUT].data + slice->offset, slice->size);
  else if (slice->round < (uint32_t)pass->ranks - 1)
    set(transfer, &regions[STAGING], staging(pass, twin), slice->size);
  else
    set(transfer, &regions[OUTPUT], regions[OUTPUT].data + slice->offset, slice->size);
  return true;
}

/* Returns true if the last user of the staging buffer no longer needs it: its sum was sent, or
 * (in the last summing round) was written to the output. */
static bool staging_is_free(const struct pass *pass, uint64_t first, const struct slice *slice)
{
  const struct plan *plan = pass->plan;
  if (slice->staged < STAGING_BUFFERS)
    return true;
  uint64_t number = plan->staged_at[slice->staged - STAGING_BUFFERS];
  const struct slice *user = &plan->receive[number];
  if (pass->pump.receive.done <= first + number)
    return false;
  return user->round == (uint32_t)pass->ranks - 2 ||
         pass->pump.send.done > first + number + user->twins;
}

static bool receive_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  uint64_t iteration = index / plan->messages;
  const struct slice *slice = &plan->receive[index % plan->messages];
  if (!has_begun(pass, iteration))
    return false;
  if (!sums_up(pass, slice)) {
    set(transfer, &pass->regions[OUTPUT], pass->regions[OUTPUT].data + slice->offset, slice->size);
    return true;
  }
  if (!staging_is_free(pass, iteration * plan->messages, slice))
    return false;
  uint8_t *data = staging(pass, slice);
  if (pass->verify)
    memset(data, PATTERN_POISON, pass_stride(pass));
  set(transfer, &pass->regions[STAGING], data, pass_stride(pass));
  return true;
}

static void add(uint32_t *to, const uint32_t *left, const uint32_t *right, size_t bytes)
{
  for (size_t i = 0; i < bytes / sizeof(*to); i++)
    to[i] = left[i] + right[i];
}

static void sum_up(struct pass *pass, const struct slice *slice)
{
  void *partial = staging(pass, slice);
  const void *own = pass->regions[INPUT].data + slice->offset;
  if (slice->round == (uint32_t)pass->ranks - 2)
    add((void *)(pass->regions[OUTPUT].data + slice->offset), partial, own, slice->size);
  else
    add(partial, partial, own, slice->size);
}

static void end_iteration_if_over(struct pass *pass)
{
  uint64_t messages = ((struct plan *)pass->plan)->messages, done = pass->pump.receive.done;
  if (!pass->verify || pass->pump.send.done != done || done == 0 || done % messages)
    return;
  uint32_t iteration = (uint32_t)(done / messages - 1);
  pass->wrong += pattern_check_sum((const void *)pass->regions[OUTPUT].data,
                                   pass->size / sizeof(uint32_t), (uint32_t)pass->ranks, iteration,
                                   pass->offset);
  if (done < pass->pump.receive.total)
    begin_iteration(pass, iteration + 1);
}

static void sent(void *user, uint64_t index) { end_iteration_if_over(user); }

static void received(void *user, uint64_t index, size_t size)
{
  struct pass *pass = user;
  const struct plan *plan = pass->plan;
  const struct slice *slice = &plan->receive[index % plan->messages];
  uint8_t *data = sums_up(pass, slice) ? staging(pass, slice)
                                       : pass->regions[OUTPUT].data + slice->offset;
  if (size != slice->size)
    pass->wrong++;
  pass_inject(pass, data, slice->size);
  if (sums_up(pass, slice))
    sum_up(pass, slice);
  end_iteration_if_over(pass);
}

static void sizes(const struct pass *pass, size_t size, size_t regions[OPERATION_REGIONS])
{
  regions[INPUT] = regions[OUTPUT] = size;
  regions[STAGING] = pass_buffers(pass, STAGING_BUFFERS);
}

static bool everybody(int rank) { return true; }

static double bus_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

static double bytes_moved(int ranks, size_t size) { return 2.0 * (ranks - 1) * (double)size; }

const struct operation operation_all_reduce = {
    .name = "all_reduce",
    .dtype = "uint32",
    .redop = "sum",
    .unit = sizeof(uint32_t),
    .outstanding = 4,
    .step = 1024 * 1024,
    .divides = true,
    .callbacks = {.send = send_next, .receive = receive_next, .sent = sent, .received = received},
    .sends = everybody,
    .receives = everybody,
    .sizes = sizes,
    .begin = begin,
    .finish = finish,
    .bus_factor = bus_factor,
    .bytes_moved = bytes_moved,
};
