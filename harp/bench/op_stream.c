/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sendrecv, sendrecv_bidir and pingpong: an iteration is one message of the pass's size, cut into
 * steps. The steps use a ring of buffers, one per outstanding request, as in NCCL's proxy.
 * all_to_all: as sendrecv_bidir with every other rank. A message of a channel is the block for its
 * target. The block of a rank for itself stays where it is.
 * mixed: an iteration is one uncut message of random size in each direction.
 */
#include "harp/bench/clock.h"
#include "harp/bench/operation.h"
#include "harp/bench/pattern.h"

#include <string.h>

enum {
  OUT,
  IN,             /* regions */
  SMALL = 1024,   /* bytes; most messages of mixed are at most this long */
  DRAW = 1 << 30, /* pattern index of the random sizes; no message is this long */
};

/* One message in 64 may have any size up to the pass's; the others are small. The size is 0 or
 * lies in one of the doublings from 1 on, all with the same probability. Both ranks draw the
 * same sizes. */
static size_t drawn_size(const struct pass *pass, uint32_t sender, uint32_t iteration)
{
  uint32_t draw = pattern_word(sender, iteration, DRAW);
  size_t most = pass->size < pass->step ? pass->size : pass->step, doublings = 1;
  if (draw % 64 && most > SMALL) {
    most = SMALL;
  }
  while (most >> doublings) {
    doublings++;
  }
  size_t doubling = draw / 64 % (doublings + 1);
  if (doubling == 0) {
    return 0;
  }
  size_t low = (size_t)1 << (doubling - 1);
  size_t size = low + pattern_word(sender, iteration, DRAW + 1) % low;
  return size < most ? size : most;
}

static uint64_t steps(const struct pass *pass)
{
  if (pass->operation->draws) {
    return 1;
  }
  return pass->size ? (pass->size + pass->step - 1) / pass->step : 1;
}

/* Position and size of a step in its message. */
struct piece {
  uint32_t iteration;
  size_t offset, size;
};

static struct piece piece_at(const struct pass *pass, int sender, uint64_t index)
{
  uint64_t count = steps(pass);
  struct piece piece = {
      .iteration = (uint32_t)(index / count),
      .offset = (size_t)(index % count) * pass->step,
  };
  if (pass->operation->draws) {
    piece.size = drawn_size(pass, (uint32_t)sender, piece.iteration);
    return piece;
  }
  size_t rest = pass->size - piece.offset;
  piece.size = rest < pass->step ? rest : pass->step;
  return piece;
}

/* Returns the position of this channel's bytes for a rank in the sender's message. */
static uint64_t position(const struct pass *pass, int target)
{
  return (uint64_t)target * pass->block + pass->offset;
}

static uint8_t *buffer_at(const struct pass *pass, int region, uint64_t index)
{
  return pass->regions[region].data + index % pass->outstanding * pass_stride(pass);
}

static bool send_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  struct piece piece = piece_at(pass, pass->rank, index);
  uint8_t *data = buffer_at(pass, OUT, index);
  if (pass->verify) {
    pattern_fill(data, piece.size, (uint32_t)pass->rank, piece.iteration,
                 position(pass, pass->target) + piece.offset);
  }
  *transfer = (struct transfer){.region = &pass->regions[OUT], .data = data, .size = piece.size};
  return true;
}

static bool receive_next(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  uint8_t *data = buffer_at(pass, IN, index);
  size_t capacity = piece_at(pass, pass->source, index).size;
  if (pass->verify) {
    capacity += index % 2 ? OPERATION_SLACK : 0;
    memset(data, PATTERN_POISON, capacity);
  }
  *transfer = (struct transfer){.region = &pass->regions[IN], .data = data, .size = capacity};
  return true;
}

static void sent(void *user, uint64_t index) {}

static void received(void *user, uint64_t index, size_t size)
{
  struct pass *pass = user;
  if (!pass->verify) {
    return;
  }
  struct piece piece = piece_at(pass, pass->source, index);
  uint8_t *data = buffer_at(pass, IN, index);
  pass_inject(pass, data, piece.size);
  if (size != piece.size) {
    pass->wrong += piece.size ? piece.size : 1;
  } else {
    pass->wrong += pattern_check(data, size, (uint32_t)pass->source, piece.iteration,
                                 position(pass, pass->rank) + piece.offset);
  }
}

static void sizes(const struct pass *pass, size_t size, size_t regions[OPERATION_REGIONS])
{
  regions[OUT] = regions[IN] = pass_buffers(pass, pass->outstanding);
}

static bool rank_0(int rank, int ranks) { return rank == 0; }

static bool rank_1(int rank, int ranks) { return rank == 1; }

static int begin(struct pass *pass)
{
  pass->messages = steps(pass);
  pass_set_totals(pass);
  return 0;
}

static void finish(struct pass *pass) {}

static double one_way(int ranks, size_t size) { return (double)size; }

static double two_ways(int ranks, size_t size) { return 2.0 * (double)size; }

static bool send_in_iteration(void *user, uint64_t index, struct transfer *transfer)
{
  const struct pass *pass = user;
  return pass_may_begin(pass, index / pass->messages) && send_next(user, index, transfer);
}

static bool receive_in_iteration(void *user, uint64_t index, struct transfer *transfer)
{
  const struct pass *pass = user;
  return pass_may_begin(pass, index / pass->messages) && receive_next(user, index, transfer);
}

/* Rank 0 sends a message when the previous one has returned. Rank 1 sends when one has arrived. */
static bool send_in_turn(void *user, uint64_t index, struct transfer *transfer)
{
  struct pass *pass = user;
  uint64_t count = steps(pass), iteration = index / count;
  uint64_t needed = pass->rank == 0 ? iteration * count : (iteration + 1) * count;
  if (pass->pump.receive.done < needed) {
    return false;
  }
  if (pass->trips_us && index % count == 0 && iteration >= pass->warmup) {
    pass->trips_us[iteration - pass->warmup] = (double)clock_ns();
  }
  return send_next(user, index, transfer);
}

static void received_in_turn(void *user, uint64_t index, size_t size)
{
  struct pass *pass = user;
  uint64_t count = steps(pass), iteration = index / count;
  if (pass->trips_us && (index + 1) % count == 0 && iteration >= pass->warmup) {
    double *trip = &pass->trips_us[iteration - pass->warmup];
    *trip = ((double)clock_ns() - *trip) / 1e3;
  }
  received(user, index, size);
}

/* Step sizes as in NCCL's send and receive. */
#define STREAM(largest)                                                                          \
  .datatype = &datatype_uint8, .redop = "none", .root = -1, .outstanding = 8, .step = (largest), \
  .sizes = sizes, .begin = begin, .finish = finish

const struct operation operation_sendrecv = {
    .name = "sendrecv",
    .divides = true,
    .direction = "0->1",
    .callbacks = {.send = send_next, .receive = receive_next, .sent = sent, .received = received},
    .sends = rank_0,
    .receives = rank_1,
    .bytes_moved = one_way,
    .ranks = 2,
    .bus_factor = operation_factor_one,
    STREAM(128 * 1024),
};

const struct operation operation_sendrecv_bidir = {
    .name = "sendrecv_bidir",
    .divides = true,
    .callbacks = {.send = send_next, .receive = receive_next, .sent = sent, .received = received},
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bytes_moved = two_ways,
    .ranks = 2,
    .bus_factor = operation_factor_one,
    STREAM(128 * 1024),
};

const struct operation operation_pingpong = {
    .name = "pingpong",
    .round_trips = true,
    .callbacks = {.send = send_in_turn,
                  .receive = receive_next,
                  .sent = sent,
                  .received = received_in_turn},
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bytes_moved = two_ways,
    .ranks = 2,
    .bus_factor = operation_factor_one,
    STREAM(128 * 1024),
};

const struct operation operation_mixed = {
    .name = "mixed",
    .draws = true,
    .callbacks = {.send = send_next, .receive = receive_next, .sent = sent, .received = received},
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bytes_moved = two_ways,
    .ranks = 2,
    .bus_factor = operation_factor_one,
    STREAM(1024 * 1024),
};

const struct operation operation_all_to_all = {
    .name = "all_to_all",
    .blocks = true,
    .pairwise = true,
    .callbacks = {.send = send_in_iteration,
                  .receive = receive_in_iteration,
                  .sent = sent,
                  .received = received},
    .sends = operation_on_every_rank,
    .receives = operation_on_every_rank,
    .bus_factor = operation_factor_of_others,
    .bytes_moved = operation_bytes_to_others,
    STREAM(128 * 1024),
};
