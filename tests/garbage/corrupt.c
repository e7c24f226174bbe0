/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/garbage/corrupt.h"

#include <stddef.h>
#include <string.h>

#include "harp/headers.h"

enum {
  HEADERS = 96, /* the part of a frame with nearly all fields */
  NOISE_LARGEST = 1600,
};

/* --- Random numbers (SplitMix64) --- */

void corrupt_seed(struct corrupt *corrupt, uint64_t seed)
{
  corrupt->state = seed;
  corrupt->seen = corrupt->kept = 0;
}

static uint64_t draw(struct corrupt *corrupt)
{
  uint64_t z = corrupt->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Returns 0 to limit - 1. */
static uint32_t below(struct corrupt *corrupt, uint32_t limit)
{
  return limit ? (uint32_t)(draw(corrupt) % limit) : 0;
}

static bool one_in(struct corrupt *corrupt, uint32_t n) { return below(corrupt, n) == 0; }

static void noise(struct corrupt *corrupt, uint8_t *at, uint32_t length)
{
  for (uint32_t i = 0; i < length; i++) {
    at[i] = (uint8_t)draw(corrupt);
  }
}

/* --- Real frames --- */

void corrupt_learn(struct corrupt *corrupt, const uint8_t *bytes, uint32_t length,
                   uint16_t segment_size, bool checksum_good)
{
  if (length > CORRUPT_LARGEST) {
    return;
  }
  uint32_t place = corrupt->kept < CORRUPT_SAMPLES ? corrupt->kept++
                                                   : below(corrupt, corrupt->seen);
  corrupt->seen++;
  if (place >= CORRUPT_SAMPLES) {
    return;
  }
  struct corrupt_frame *sample = &corrupt->samples[place];
  sample->length = length;
  sample->segment_size = segment_size;
  sample->checksum_good = checksum_good;
  memcpy(sample->bytes, bytes, length);
}

/* --- Changes --- */

static uint32_t place_in(struct corrupt *corrupt, const struct corrupt_frame *frame)
{
  uint32_t headers = frame->length < HEADERS ? frame->length : HEADERS;
  return below(corrupt, one_in(corrupt, 4) ? frame->length : headers);
}

static void flip_bits(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  for (uint32_t n = 1 + below(corrupt, 8); n > 0 && frame->length > 0; n--) {
    frame->bytes[place_in(corrupt, frame)] ^= (uint8_t)(1u << below(corrupt, 8));
  }
}

static void replace_bytes(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  for (uint32_t n = 1 + below(corrupt, 6); n > 0 && frame->length > 0; n--) {
    frame->bytes[place_in(corrupt, frame)] = (uint8_t)draw(corrupt);
  }
}

static void cut_short(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  frame->length = below(corrupt, one_in(corrupt, 2) ? frame->length + 1 : HEADERS);
}

static void lengthen(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  uint32_t more = below(corrupt, CORRUPT_LARGEST - frame->length + 1);
  if (!one_in(corrupt, 8) && more > 64) {
    more = below(corrupt, 64);
  }
  noise(corrupt, frame->bytes + frame->length, more);
  frame->length += more;
}

/* Sets a two-byte field to a boundary value. */
static void set_extreme(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  static const uint16_t values[] = {0, 1, 0x7fff, 0x8000, 0xffff, 20, 40, 1500};
  uint16_t value = one_in(corrupt, 4) ? (uint16_t)(frame->length - below(corrupt, 4))
                                      : values[below(corrupt, sizeof values / sizeof values[0])];
  uint32_t at = place_in(corrupt, frame) & ~1u;
  if (at + 2 > frame->length) {
    return;
  }
  frame->bytes[at] = (uint8_t)(value >> 8);
  frame->bytes[at + 1] = (uint8_t)value;
}

/* Returns the offset of the TCP header, or 0 if the frame is too short for IPv4 and TCP. */
static uint32_t tcp_at(const struct corrupt_frame *frame)
{
  uint32_t at = ETH_HEADER +
                (frame->length > ETH_HEADER ? (frame->bytes[ETH_HEADER] & 15u) * 4 : 0);
  return at >= ETH_HEADER + IP_HEADER && at + TCP_HEADER <= frame->length ? at : 0;
}

static void change_options(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (!tcp) {
    return;
  }
  uint32_t room = frame->length - tcp - TCP_HEADER;
  noise(corrupt, frame->bytes + tcp + TCP_HEADER, room < 40 ? room : 40);
  /* Known kinds, with lengths that may not fit. */
  for (uint32_t i = 0; i + 2 <= room && i < 40; i += 1 + below(corrupt, 10)) {
    frame->bytes[tcp + TCP_HEADER + i] = (uint8_t)below(corrupt, 10);
    frame->bytes[tcp + TCP_HEADER + i + 1] = (uint8_t)below(corrupt, 42);
  }
  frame->bytes[tcp + TCP_OFFSET] = (uint8_t)(below(corrupt, 16) << 4);
}

static void change_flags(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (tcp) {
    frame->bytes[tcp + TCP_FLAG_BYTE] = (uint8_t)draw(corrupt);
  }
}

/* Changes the sequence or acknowledgement number, to any value or to one near the old value. */
static void move_numbers(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (!tcp) {
    return;
  }
  uint8_t *at = frame->bytes + tcp + (one_in(corrupt, 2) ? TCP_SEQUENCE : TCP_ACKNOWLEDGEMENT);
  uint32_t value = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
  uint32_t near = one_in(corrupt, 2) ? 16 : 1u << 21;
  value = one_in(corrupt, 3) ? (uint32_t)draw(corrupt) : value + below(corrupt, 2 * near) - near;
  for (int i = 0; i < 4; i++) {
    at[i] = (uint8_t)(value >> (24 - 8 * i));
  }
}

/* Appends the end of another frame to the start of this one. */
static void splice(struct corrupt *corrupt, struct corrupt_frame *frame)
{
  const struct corrupt_frame *other = &corrupt->samples[below(corrupt, corrupt->kept)];
  uint32_t at = place_in(corrupt, frame);
  if (at >= other->length) {
    return;
  }
  memcpy(frame->bytes + at, other->bytes + at, other->length - at);
  frame->length = other->length;
}

static void (*const changes[])(struct corrupt *, struct corrupt_frame *) = {
    flip_bits,      replace_bytes, cut_short,    lengthen, set_extreme,
    change_options, change_flags,  move_numbers, splice,
};

/* Without this the stack would look at nothing after the IPv4 header. */
static void mend_ip_checksum(struct corrupt_frame *frame)
{
  uint32_t size = frame->length > ETH_HEADER ? (frame->bytes[ETH_HEADER] & 15u) * 4 : 0, sum = 0;
  uint8_t *ip = frame->bytes + ETH_HEADER;
  if (size < IP_HEADER || ETH_HEADER + size > frame->length) {
    return;
  }
  ip[IP_SUM] = ip[IP_SUM + 1] = 0;
  for (uint32_t i = 0; i < size; i += 2) {
    sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
  }
  while (sum >> 16) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  ip[IP_SUM] = (uint8_t)(~sum >> 8);
  ip[IP_SUM + 1] = (uint8_t)~sum;
}

static void corrupt_sample(struct corrupt *corrupt, struct corrupt_frame *out)
{
  const struct corrupt_frame *sample = &corrupt->samples[below(corrupt, corrupt->kept)];
  memcpy(out, sample, offsetof(struct corrupt_frame, bytes) + sample->length);
  for (uint32_t n = 1 + below(corrupt, 3); n > 0; n--) {
    changes[below(corrupt, sizeof changes / sizeof changes[0])](corrupt, out);
  }
  if (!one_in(corrupt, 4)) {
    mend_ip_checksum(out);
  }
  out->checksum_good = one_in(corrupt, 2);
  if (one_in(corrupt, 16)) {
    out->segment_size = (uint16_t)draw(corrupt);
  }
}

/* Random bytes, often after headers that a host accepts. */
static void make_noise(struct corrupt *corrupt, struct corrupt_frame *out)
{
  static const uint32_t heads[] = {0, ETH_HEADER, ETH_HEADER + IP_HEADER,
                                   ETH_HEADER + IP_HEADER + TCP_HEADER};
  uint32_t head = heads[below(corrupt, sizeof heads / sizeof heads[0])];
  out->length = below(corrupt, NOISE_LARGEST);
  out->segment_size = 0;
  out->checksum_good = one_in(corrupt, 2);
  noise(corrupt, out->bytes, out->length);
  if (corrupt->kept && out->length >= head) {
    memcpy(out->bytes, corrupt->samples[below(corrupt, corrupt->kept)].bytes, head);
  }
}

void corrupt_next(struct corrupt *corrupt, struct corrupt_frame *out)
{
  if (corrupt->kept == 0 || one_in(corrupt, 3)) {
    make_noise(corrupt, out);
  } else {
    corrupt_sample(corrupt, out);
  }
}
