/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of exchanges (plan_exchange.c) whose ranks are on several hosts. A rank has links only
 * to the ranks with its local rank on the other hosts, so all ranks of a host carry a part. Each
 * byte crosses the network once for each host that needs it, and not for each rank.
 *
 * - broadcast: the tensor has a share for each local rank. The root gives all shares to its host.
 *   Each rank there passes its own share on to the other hosts, whose ranks give theirs to each
 *   other. A short tensor is one share, of the root's local rank.
 * - all_gather: each rank sends what it has to the other hosts, and gives what it gets from them to
 *   its host.
 * - reduce_scatter: each rank folds what its host has for the ranks with its local rank, and sends
 *   these partial results. They are as wide as the accumulator, so results are rounded once.
 *
 * A rank gives several segments to another one: one for each host or, at the root's host of a
 * broadcast, one for each share. Chunks alternate between segments. In reduce_scatter, the own
 * segment comes last: it waits for sums that other hosts send before their own segment, so hosts
 * cannot wait in a circle. Messages of all_gather wait for nothing. Those of broadcast wait only
 * for hosts nearer to the root.
 *
 * Träff and Hunold, "Decomposing Collectives for Exploiting Multi-lane Communication" (2020).
 */
#include <stdlib.h>

#include "harp/collectives/plan_exchange.h"
#include "harp/collectives/plan_relay.h"
#include "harp/fnv1a.h"

static int rank_at(const struct windows *windows, int host, int local_rank)
{
  return windows_cross_ranks(windows, local_rank)[host];
}

/* The rank with our local rank, `distance` hosts after (or, negative, before) ours. */
static int cross_host(const struct windows *windows, int distance)
{
  return (windows->host + distance + windows->hosts) % windows->hosts;
}

static int cross_rank(const struct windows *windows, int distance)
{
  return rank_at(windows, cross_host(windows, distance), windows->local_rank);
}

/* --- Shares of a broadcast --- */

struct member {
  int host, local_rank;
};

static struct member root_of(const struct plan *plan)
{
  const struct windows *windows = plan->windows;
  int at = 0;
  while (windows->grid[at] != plan->call->peer) {
    at++;
  }
  return (struct member){at % windows->hosts, at / windows->hosts};
}

/* A short tensor is one share. */
static bool is_whole(const struct plan *plan) { return plan->call->out->bytes <= LINK_SHORT; }

static struct harp_view share_of(const struct plan *plan, int local_rank)
{
  const struct harp_view *whole = plan->call->out;
  size_t count = (size_t)plan->windows->count;
  size_t each = ((whole->bytes + count - 1) / count + 63) & ~(size_t)63;
  size_t at = (size_t)local_rank * each;
  if (is_whole(plan) && local_rank == root_of(plan).local_rank) {
    return *whole;
  }
  if (is_whole(plan) || at >= whole->bytes) {
    return (struct harp_view){NULL, 0};
  }
  size_t left = whole->bytes - at;
  return (struct harp_view){(uint8_t *)whole->data + at, left < each ? left : each};
}

/* The local rank whose share is in a segment, at the root's host. */
static int sharer_of(const struct plan *plan, int segment)
{
  return is_whole(plan) ? root_of(plan).local_rank : segment;
}

static struct part share_part(const struct plan *plan, int local_rank, int segment)
{
  const struct windows *windows = plan->windows;
  struct part part = {.matches = true};
  struct member root = root_of(plan);
  if (windows->host != root.host) {
    part.given = share_of(plan, windows->local_rank);
    part.taken = share_of(plan, local_rank);
    return part;
  }
  part.matches = local_rank == root.local_rank;
  if (windows->local_rank == root.local_rank) {
    part.given = share_of(plan, sharer_of(plan, segment));
  }
  if (local_rank == root.local_rank) {
    part.taken = share_of(plan, sharer_of(plan, segment));
  }
  return part;
}

/* --- Segments --- */

int across_segments(const struct plan *plan)
{
  const struct windows *windows = plan->windows;
  if (windows->hosts == 1) {
    return 1;
  }
  if (plan->call->kind != HARP_BROADCAST) {
    return windows->hosts;
  }
  return windows->host == root_of(plan).host && !is_whole(plan) ? windows->count : 1;
}

/* What came from other hosts follows what we have. */
static int gather_distance(int segment) { return -segment; }

/* Partial results for other hosts precede our own, which needs theirs. */
static int scatter_distance(int segment) { return segment + 1; }

struct part across_part(const struct plan *plan, int local_rank, int segment)
{
  const struct windows *windows = plan->windows;
  const struct harp_call *call = plan->call;
  if (call->kind == HARP_BROADCAST) {
    return share_part(plan, local_rank, segment);
  }
  if (call->kind == HARP_ALL_GATHER) {
    int host = cross_host(windows, gather_distance(segment));
    return (struct part){segment == 0 ? *call->in
                                      : call->out[rank_at(windows, host, windows->local_rank)],
                         call->out[rank_at(windows, host, local_rank)], true};
  }
  int host = cross_host(windows, scatter_distance(segment));
  bool own = host == windows->host;
  return (struct part){call->in[rank_at(windows, host, local_rank)],
                       own ? *call->out : call->in[rank_at(windows, host, windows->local_rank)],
                       true};
}

uint64_t across_sizes(const struct plan *plan)
{
  const struct harp_call *call = plan->call;
  uint64_t hash = FNV1A_64_BEGIN;
  if (plan->windows->hosts == 1 || call->kind == HARP_BROADCAST) {
    return 0;
  }
  const struct harp_view *views = call->kind == HARP_ALL_GATHER ? call->out : call->in;
  for (int rank = 0; rank < plan->ranks; rank++) {
    hash = fnv1a_64(hash, &views[rank].bytes, sizeof views[rank].bytes);
  }
  return hash;
}

/* A part is at most half of a chunk, because a host has two ranks at least. Its sums may be twice
 * as wide as the elements, and have room in a staged message. */
_Static_assert((int)LINK_SLICE >= (int)WINDOW_CHUNK, "the sums of a part do not fit");

bool across_init(struct exchange *exchange)
{
  const struct windows *windows = exchange->windows;
  if (windows->hosts == 1 || exchange->plan->call->kind != HARP_REDUCE_SCATTER) {
    return true;
  }
  exchange->staged = malloc((size_t)windows->hosts * sizeof *exchange->staged);
  for (int host = 0; exchange->staged && host < windows->hosts; host++) {
    for (int slot = 0; slot < LINK_STAGED; slot++) {
      exchange->staged[host].sent[slot] = exchange->staged[host].folded[slot] = NO_STEP;
    }
  }
  exchange->schedule->out_of_memory |= !exchange->staged;
  return exchange->staged != NULL;
}

/* --- Broadcast and all_gather --- */

static int32_t relay_share(struct exchange *exchange, const struct harp_view *view, int32_t after)
{
  const struct windows *windows = exchange->windows;
  struct relay relay = {.schedule = exchange->schedule,
                        .members = windows_cross_ranks(windows, windows->local_rank),
                        .size = windows->hosts,
                        .root = root_of(exchange->plan).host};
  relay.number = (windows->host - relay.root + windows->hosts) % windows->hosts;
  return relay_add(&relay, view, after);
}

static int32_t gather_across(struct exchange *exchange, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  int segment = exchange_segment(exchange, chunk);
  const struct part *part = &exchange_parts(exchange, windows->local_rank)[segment];
  struct harp_view view = exchange_cut(exchange, &part->given, chunk);
  if (segment > 0) {
    int from = cross_rank(windows, gather_distance(segment));
    return add_receive(exchange->schedule, from, view.data, view.bytes, NO_STEP);
  }
  for (int distance = 1; distance < windows->hosts; distance++) {
    add_send(exchange->schedule, cross_rank(windows, distance), view.data, view.bytes, NO_STEP);
  }
  return NO_STEP;
}

int32_t across_give(struct exchange *exchange, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  int kind = exchange->plan->call->kind;
  if (windows->hosts > 1 && kind == HARP_ALL_GATHER) {
    return gather_across(exchange, chunk);
  }
  if (windows->hosts == 1 || kind != HARP_BROADCAST) {
    return NO_STEP;
  }
  if (windows->host == root_of(exchange->plan).host) {
    return NO_STEP; /* across_take sends */
  }
  const struct part *part = exchange_parts(exchange, windows->local_rank);
  struct harp_view view = exchange_cut(exchange, &part->given, chunk);
  return relay_share(exchange, &view, NO_STEP);
}

void across_take(struct exchange *exchange, size_t chunk)
{
  const struct windows *windows = exchange->windows;
  int segment = exchange_segment(exchange, chunk);
  if (windows->hosts == 1 || exchange->plan->call->kind != HARP_BROADCAST) {
    return;
  }
  struct member root = root_of(exchange->plan);
  if (windows->host == root.host && sharer_of(exchange->plan, segment) == windows->local_rank) {
    const struct part *part = &exchange_parts(exchange, root.local_rank)[segment];
    struct harp_view view = exchange_cut(exchange, &part->taken, chunk);
    bool has = windows->local_rank == root.local_rank;
    relay_share(exchange, &view, has ? NO_STEP : schedule_computing(exchange->schedule)->tail);
  }
}

/* --- Reduce_scatter --- */

/* The staging of a chunk's messages. */
static size_t slot_of(const struct exchange *exchange, size_t chunk)
{
  return chunk / (size_t)exchange->segments % LINK_STAGED;
}

static void *staging(struct exchange *exchange, bool sends, int peer, size_t chunk)
{
  struct link *link = links_get(exchange->plan->links, LINK_COLLECTIVE, sends, peer);
  return link_staging(link, (int)slot_of(exchange, chunk));
}

/* Whether a chunk's partial result is for our host. */
static bool is_own(const struct exchange *exchange, size_t chunk)
{
  return exchange_segment(exchange, chunk) == exchange->segments - 1;
}

/* The distance of the host that a partial result is for. */
static int distance_of(const struct exchange *exchange, size_t chunk)
{
  return scatter_distance(exchange_segment(exchange, chunk));
}

void *across_partial(struct exchange *exchange, size_t chunk, int32_t *after)
{
  const struct windows *windows = exchange->windows;
  int distance = distance_of(exchange, chunk);
  *after = NO_STEP;
  if (is_own(exchange, chunk)) {
    return NULL;
  }
  *after = exchange->staged[cross_host(windows, distance)].sent[slot_of(exchange, chunk)];
  return staging(exchange, true, cross_rank(windows, distance), chunk);
}

static void fold_received(struct exchange *exchange, int distance, size_t chunk, void *partial,
                          size_t count)
{
  const struct windows *windows = exchange->windows;
  struct schedule *schedule = exchange->schedule;
  int from = cross_rank(windows, distance);
  int32_t *folded =
      &exchange->staged[cross_host(windows, distance)].folded[slot_of(exchange, chunk)];
  void *received = staging(exchange, false, from, chunk);
  int32_t step = add_receive(schedule, from, received, count * schedule->reduction.wide_size,
                             *folded);
  mark_staged(schedule, step);
  *folded = add_compute(schedule, STEP_FOLD_WIDE, partial, received, count, step, NO_STEP);
}

bool across_fold(struct exchange *exchange, size_t chunk, void *partial, size_t count)
{
  const struct windows *windows = exchange->windows;
  struct schedule *schedule = exchange->schedule;
  if (is_own(exchange, chunk)) {
    for (int distance = 1; distance < windows->hosts; distance++) {
      fold_received(exchange, -distance, chunk, partial, count);
    }
    return true;
  }
  int distance = distance_of(exchange, chunk);
  int32_t sent = add_send(schedule, cross_rank(windows, distance), partial,
                          count * schedule->reduction.wide_size,
                          schedule_computing(schedule)->tail);
  mark_staged(schedule, sent);
  exchange->staged[cross_host(windows, distance)].sent[slot_of(exchange, chunk)] = sent;
  return false;
}
