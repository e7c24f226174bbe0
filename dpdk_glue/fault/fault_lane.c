/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/fault/fault_lane.h"

#include <stdlib.h>
#include <string.h>

#include "dpdk_glue/segment_headers.h"

enum {
  LATE_LIMIT_NS = 10000000, /* a late frame passes on after this time without later frames */
  RATE_QUEUE_NS = 50000000, /* queueing delay of a rate-limited line before it drops */
  HELD_BYTES = 64 * 1024 * 1024,
};

/* SplitMix64: any seed, zero included, gives a full-period sequence. */
static uint64_t draw(uint64_t *state)
{
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static bool strikes(uint64_t *dice, uint64_t probability) { return draw(dice) >> 32 < probability; }

void harp_fault_lane_init(struct fault_lane *lane, uint64_t seed, unsigned number)
{
  memset(lane, 0, sizeof(*lane));
  uint64_t mixed = seed;
  lane->dice = draw(&mixed) + number;
  lane->dice = draw(&lane->dice);
}

static void clear_list(struct fault_list *list)
{
  while (list->first) {
    struct fault_frame *frame = list->first;
    list->first = frame->next;
    free(frame);
  }
  list->last = NULL;
}

void harp_fault_lane_clear(struct fault_lane *lane)
{
  clear_list(&lane->line);
  clear_list(&lane->late);
  lane->held_bytes = lane->late_count = 0;
}

static bool is_lost(struct fault_lane *lane, const struct fault_spec *spec, bool struck)
{
  if (spec->blackhole) {
    return true;
  }
  if (lane->burst_left > 0) {
    lane->burst_left--;
    return true;
  }
  if (struck) {
    lane->burst_left = spec->drop_burst - 1;
  }
  return struck;
}

/* Returns the time when the frame has left a line of the given rate; 0: the line's queue is
 * full. */
static uint64_t leaves_line(struct fault_lane *lane, uint64_t rate_mbps, uint32_t length,
                            uint64_t now_ns)
{
  uint64_t start = lane->free_ns > now_ns ? lane->free_ns : now_ns;
  if (start - now_ns > RATE_QUEUE_NS) {
    return 0;
  }
  lane->free_ns = start + (uint64_t)length * 8000 / rate_mbps;
  return lane->free_ns;
}

struct fault_verdict harp_fault_judge(struct fault_lane *lane, const struct fault_spec *spec,
                                      uint32_t length, uint64_t now_ns)
{
  bool struck = strikes(&lane->dice, spec->drop);
  struct fault_verdict verdict = {
      .corrupt = strikes(&lane->dice, spec->corrupt),
      .duplicate = strikes(&lane->dice, spec->duplicate),
      .late = strikes(&lane->dice, spec->reorder),
      .corrupt_at = draw(&lane->dice),
      .due_ns = now_ns,
  };
  lane->seen++;
  verdict.drop = is_lost(lane, spec, struck);
  if (verdict.drop) {
    return verdict;
  }
  if (spec->rate_mbps) {
    verdict.due_ns = leaves_line(lane, spec->rate_mbps, length, now_ns);
    verdict.drop = verdict.due_ns == 0;
  }
  verdict.due_ns += spec->delay_us * 1000;
  verdict.after = lane->seen + spec->reorder_by;
  /* Every frame waits behind delayed frames, so a delay keeps the order. */
  verdict.hold = verdict.late || verdict.due_ns > now_ns || lane->line.first;
  return verdict;
}

static struct fault_frame *new_frame(uint32_t length)
{
  struct fault_frame *frame = calloc(1, sizeof(*frame) + length);
  if (frame) {
    frame->length = length;
  }
  return frame;
}

struct fault_frame *harp_fault_copy_tx(const struct harp_tx_frame *from)
{
  struct fault_frame *frame = new_frame(from->length);
  if (!frame) {
    return NULL;
  }
  frame->header_length = from->header_length;
  frame->segment_size = from->segment_size;
  frame->checksum_start = from->checksum_start;
  frame->checksum_offset = from->checksum_offset;
  frame->checksum_needed = from->checksum_needed;
  uint8_t *to = frame->bytes;
  for (unsigned i = 0; i < from->iov_count; i++) {
    memcpy(to, from->iov[i].iov_base, from->iov[i].iov_len);
    to += from->iov[i].iov_len;
  }
  return frame;
}

struct fault_frame *harp_fault_copy_rx(const struct harp_rx_frame *from)
{
  struct fault_frame *frame = new_frame(from->header_length + from->payload_length);
  if (!frame) {
    return NULL;
  }
  frame->segment_size = from->segment_size;
  frame->checksum_good = from->checksum_good;
  memcpy(frame->bytes, from->header, from->header_length);
  if (from->payload_length) {
    memcpy(frame->bytes + from->header_length, from->payload, from->payload_length);
  }
  return frame;
}

static void flip(struct fault_frame *frame, uint64_t bit)
{
  frame->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

/* Whether a receiver on this machine may take the frame for one that no wire has damaged; see
 * xdp_rx.c. If so, *checksum is a bit of its checksum. */
static bool looks_incomplete(const struct fault_frame *frame, uint64_t *checksum)
{
  struct harp_tcp_fields fields;
  if (!harp_frame_tcp_fields(frame->bytes, frame->length, &fields)) {
    return false;
  }
  *checksum = (fields.start + TCP_CHECKSUM) * UINT64_C(8);
  return harp_is_incomplete(frame->bytes, &fields);
}

void harp_fault_corrupt(struct fault_frame *frame, uint64_t choice)
{
  if (frame->length <= ETH_HEADER) {
    return;
  }
  if (frame->checksum_needed || frame->checksum_good) {
    harp_complete_checksum(frame->bytes, frame->length);
  }
  frame->checksum_needed = frame->checksum_good = 0;
  uint64_t bit = ETH_HEADER * 8 + choice % ((uint64_t)(frame->length - ETH_HEADER) * 8);
  uint64_t checksum;
  flip(frame, bit);
  while (looks_incomplete(frame, &checksum)) {
    flip(frame, bit);
    bit = bit == checksum ? checksum + 1 : checksum;
    flip(frame, bit);
  }
}

static void append(struct fault_list *list, struct fault_frame *frame)
{
  frame->next = NULL;
  if (list->last) {
    list->last->next = frame;
  } else {
    list->first = frame;
  }
  list->last = frame;
}

void harp_fault_hold(struct fault_lane *lane, struct fault_frame *frame,
                     const struct fault_verdict *verdict)
{
  if (lane->held_bytes + frame->length > HELD_BYTES) {
    free(frame);
    return;
  }
  lane->held_bytes += frame->length;
  frame->due_ns = verdict->due_ns + (verdict->late ? LATE_LIMIT_NS : 0);
  frame->after = verdict->late ? verdict->after : UINT64_MAX;
  append(verdict->late ? &lane->late : &lane->line, frame);
  lane->late_count += verdict->late;
}

struct fault_frame *harp_fault_due(const struct fault_lane *lane, uint64_t now_ns)
{
  for (struct fault_frame *frame = lane->late.first; frame; frame = frame->next) {
    if (lane->seen >= frame->after || frame->due_ns <= now_ns) {
      return frame;
    }
  }
  struct fault_frame *first = lane->line.first;
  return first && first->due_ns <= now_ns ? first : NULL;
}

/* Returns false if the frame is not in this list. */
static bool unlink_frame(struct fault_list *list, struct fault_frame *frame)
{
  struct fault_frame *before = NULL;
  for (struct fault_frame *at = list->first; at; before = at, at = at->next) {
    if (at != frame) {
      continue;
    }
    if (before) {
      before->next = at->next;
    } else {
      list->first = at->next;
    }
    if (list->last == at) {
      list->last = before;
    }
    return true;
  }
  return false;
}

void harp_fault_remove(struct fault_lane *lane, struct fault_frame *frame)
{
  if (unlink_frame(&lane->late, frame)) {
    lane->late_count--;
  } else {
    unlink_frame(&lane->line, frame);
  }
  lane->held_bytes -= frame->length;
}

uint64_t harp_fault_next_due(const struct fault_lane *lane)
{
  uint64_t next = lane->line.first ? lane->line.first->due_ns : UINT64_MAX;
  for (const struct fault_frame *frame = lane->late.first; frame; frame = frame->next) {
    if (frame->due_ns < next) {
      next = frame->due_ns;
    }
  }
  return next;
}
