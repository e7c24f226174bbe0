/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of a relay: impairs frames and schedules their departure.
 *
 * The faults of a frame depend only on the seed, the direction and the number of earlier TCP
 * frames. So the same spec impairs the same frames.
 */
#include "tools/relay/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <net/ethernet.h>

/* Longest time that a frame is held back. Otherwise the last frame of a transfer would never
 * arrive. */
static const uint64_t HOLD_MAX_NS = 10000000;

enum draw {
  DRAW_DROP,
  DRAW_CORRUPT,
  DRAW_CORRUPT_WHERE,
  DRAW_REORDER,
  DRAW_REORDER_DEPTH,
  DRAW_DUPLICATE,
};

/* The finalizer of SplitMix64: every input bit affects every output bit. */
static uint64_t mix(uint64_t x)
{
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t draw(const struct relay_path *path, enum draw what)
{
  uint64_t x = mix(path->spec->seed + 0x9e3779b97f4a7c15u * (path->direction + 1));

  return mix(x + 0x9e3779b97f4a7c15u * (path->sequence * 8 + what));
}

static bool happens(const struct relay_path *path, enum draw what, double probability)
{
  return (double)(draw(path, what) >> 11) < probability * 0x1p53;
}

static struct relay_frame *slot(struct relay_path *path, uint32_t index)
{
  return &path->queue[(path->head + index) % path->spec->queue];
}

int relay_path_init(struct relay_path *path, const struct relay_spec *spec, size_t frame_size)
{
  uint32_t frames = spec->queue + RELAY_HOLD_MAX;
  size_t stride = (RELAY_ALIGN + frame_size + 63) & ~(size_t)63;
  uint8_t *memory = aligned_alloc(64, frames * stride);

  path->spec = spec;
  path->frame_size = frame_size;
  path->queue = calloc(spec->queue, sizeof *path->queue);
  path->flows = calloc(RELAY_FLOWS, sizeof *path->flows);
  if (!memory || !path->queue || !path->flows) {
    free(memory);
    free(path->queue);
    free(path->flows);
    return -ENOMEM;
  }
  path->memory = memory;
  for (uint32_t i = 0; i < spec->queue; i++) {
    path->queue[i].data = memory + i * stride + RELAY_ALIGN;
  }
  for (uint32_t i = 0; i < RELAY_HOLD_MAX; i++) {
    path->held[i].frame.data = memory + (spec->queue + i) * stride + RELAY_ALIGN;
  }
  return 0;
}

void relay_path_free(struct relay_path *path)
{
  free(path->memory);
  free(path->queue);
  free(path->flows);
}

uint8_t *relay_path_room(struct relay_path *path)
{
  if (path->used == path->spec->queue) {
    path->counts.overflowed++;
    return NULL;
  }
  return slot(path, path->used)->data;
}

/* Appends the frame in the room after the queue's last one. It leaves after the rate limit and
 * then the delay. */
static void append(struct relay_path *path, uint32_t length, uint64_t now_ns)
{
  const struct relay_spec *spec = path->spec;
  struct relay_frame *frame = slot(path, path->used++);
  uint64_t start = path->line_free_ns > now_ns ? path->line_free_ns : now_ns;

  path->line_free_ns = start + (spec->rate_mbps ? length * 8000ull / spec->rate_mbps : 0);
  frame->length = length;
  frame->release_ns = path->line_free_ns + spec->delay_ns;
}

/* Same, for a TCP frame that is not the relay's duplicate. The queue loses no appended frame. */
static void append_tcp(struct relay_path *path, uint32_t length, uint64_t now_ns)
{
  const struct relay_frame *frame = slot(path, path->used);

  append(path, length, now_ns);
  if (!frame->corrupted) {
    relay_flow_delivered(path, frame->data, length);
  }
}

static void corrupt(struct relay_path *path, struct relay_frame *frame, size_t length)
{
  uint64_t random = draw(path, DRAW_CORRUPT_WHERE);
  uint8_t flip = (uint8_t)(random >> 56);

  /* after the Ethernet header, where a checksum covers every byte */
  frame->data[ETHER_HDR_LEN + random % (length - ETHER_HDR_LEN)] ^= flip ? flip : 1;
  frame->corrupted = true;
  path->counts.corrupted++;
}

/* Holds back the frame in the room after the queue's last one. */
static void hold(struct relay_path *path, uint32_t length, uint64_t now_ns)
{
  struct relay_held *held = &path->held[path->held_used++];
  struct relay_frame *frame = slot(path, path->used);
  uint32_t spread = path->spec->reorder_depth - RELAY_REORDER_MIN + 1;
  uint8_t *spare = held->frame.data;

  held->frame = (struct relay_frame){now_ns + HOLD_MAX_NS, length, frame->corrupted, frame->data};
  held->overtakers = RELAY_REORDER_MIN + (uint32_t)(draw(path, DRAW_REORDER_DEPTH) % spread);
  held->overtaken = false;
  frame->data = spare;
}

/* Appends held frame i to the queue. The frame waits longer if the queue is full. */
static void let_go(struct relay_path *path, uint32_t i, uint64_t now_ns)
{
  if (path->used == path->spec->queue) {
    return;
  }
  struct relay_held held = path->held[i];
  struct relay_held *last = &path->held[--path->held_used];
  struct relay_frame *frame = slot(path, path->used);
  uint8_t *spare = frame->data;

  path->counts.reordered += held.overtaken;
  frame->data = held.frame.data;
  frame->corrupted = held.frame.corrupted;
  append_tcp(path, held.frame.length, now_ns);
  path->held[i] = *last;
  last->frame.data = spare;
}

/* Counts one more frame that has passed the held ones. */
static void overtake(struct relay_path *path, uint64_t now_ns)
{
  for (uint32_t i = path->held_used; i-- > 0;) {
    path->held[i].overtaken = true;
    if (path->held[i].overtakers > 0) {
      path->held[i].overtakers--;
    }
    if (path->held[i].overtakers == 0) {
      let_go(path, i, now_ns);
    }
  }
}

static bool lost(struct relay_path *path)
{
  if (path->burst_left == 0 && happens(path, DRAW_DROP, path->spec->drop)) {
    path->burst_left = path->spec->drop_burst;
  }
  if (path->burst_left == 0) {
    return false;
  }
  path->burst_left--;
  path->counts.dropped++;
  return true;
}

static void duplicate(struct relay_path *path, size_t length, uint64_t now_ns)
{
  const uint8_t *original = slot(path, path->used - 1)->data;
  uint8_t *copy = relay_path_room(path);

  if (!copy) {
    return;
  }
  memcpy(copy, original, length);
  append(path, (uint32_t)length, now_ns);
  path->counts.duplicated++;
}

static void add_tcp(struct relay_path *path, size_t length, uint64_t now_ns)
{
  const struct relay_spec *spec = path->spec;
  struct relay_frame *frame = slot(path, path->used);

  relay_flow_sent(path, frame->data, length);
  if (lost(path)) {
    return;
  }
  frame->corrupted = false;
  if (happens(path, DRAW_CORRUPT, spec->corrupt)) {
    corrupt(path, frame, length);
  }
  if (path->held_used < RELAY_HOLD_MAX && happens(path, DRAW_REORDER, spec->reorder)) {
    hold(path, (uint32_t)length, now_ns);
    return;
  }
  append_tcp(path, (uint32_t)length, now_ns);
  if (happens(path, DRAW_DUPLICATE, spec->duplicate)) {
    duplicate(path, length, now_ns);
  }
  overtake(path, now_ns);
}

void relay_path_add(struct relay_path *path, size_t length, uint64_t now_ns)
{
  path->counts.segments++;
  if (relay_frame_is_tcp(slot(path, path->used)->data, length)) {
    add_tcp(path, length, now_ns);
    path->sequence++;
  } else {
    path->counts.passed++;
    append(path, (uint32_t)length, now_ns);
  }
}

static int count_due(struct relay_path *path, uint64_t now_ns)
{
  uint32_t until_wrap = path->spec->queue - path->head;
  uint32_t limit = path->used < until_wrap ? path->used : until_wrap;
  uint32_t due = 0;

  while (due < limit && due < RELAY_BATCH && path->queue[path->head + due].release_ns <= now_ns) {
    due++;
  }
  return (int)due;
}

bool relay_path_flush(struct relay_path *path, uint64_t now_ns)
{
  bool any = false;

  for (uint32_t i = path->held_used; i-- > 0;) {
    if (path->held[i].frame.release_ns <= now_ns) {
      let_go(path, i, now_ns);
    }
  }
  for (int due; (due = count_due(path, now_ns)) > 0; any = true) {
    int sent = relay_socket_send(path, &path->queue[path->head], due);

    if (sent <= 0) {
      break;
    }
    path->head = (path->head + (uint32_t)sent) % path->spec->queue;
    path->used -= (uint32_t)sent;
  }
  return any;
}

uint64_t relay_path_deadline(const struct relay_path *path)
{
  uint64_t deadline = path->used ? path->queue[path->head].release_ns : UINT64_MAX;

  for (uint32_t i = 0; i < path->held_used; i++) {
    if (path->held[i].frame.release_ns < deadline) {
      deadline = path->held[i].frame.release_ns;
    }
  }
  return deadline;
}
