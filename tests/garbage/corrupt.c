/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/garbage/corrupt.h"

#include <stddef.h>
#include <string.h>

enum {
  ETHERNET = 14,
  IP_LEAST = 20,
  HEADERS = 96, /* the part of a frame with nearly all fields */
  NOISE_LARGEST = 1600,
};

/* --- Random numbers (SplitMix64) --- */

void spoil_seed(struct spoil *spoil, uint64_t seed)
{
  spoil->state = seed;
  spoil->seen = spoil->kept = 0;
}

static uint64_t draw(struct spoil *spoil)
{
  uint64_t z = spoil->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Returns 0 to limit - 1. */
static uint32_t below(struct spoil *spoil, uint32_t limit)
{
  return limit ? (uint32_t)(draw(spoil) % limit) : 0;
}

static bool one_in(struct spoil *spoil, uint32_t n) { return below(spoil, n) == 0; }

static void noise(struct spoil *spoil, uint8_t *at, uint32_t length)
{
  for (uint32_t i = 0; i < length; i++)
    at[i] = (uint8_t)draw(spoil);
}

/* --- Real frames --- */

void spoil_learn(struct spoil *spoil, const uint8_t *bytes, uint32_t length, uint16_t segment_size,
                 bool vouched)
{
  if (length > SPOIL_LARGEST)
    return;
  uint32_t place = spoil->kept < SPOIL_SAMPLES ? spoil->kept++ : below(spoil, spoil->seen);
  spoil->seen++;
  if (place >= SPOIL_SAMPLES)
    return;
  struct spoil_frame *sample = &spoil->samples[place];
  sample->length = length;
  sample->segment_size = segment_size;
  sample->vouched = vouched;
  memcpy(sample->bytes, bytes, length);
}

/* --- Changes --- */

static uint32_t place_in(struct spoil *spoil, const struct spoil_frame *frame)
{
  uint32_t headers = frame->length < HEADERS ? frame->length : HEADERS;
  return below(spoil, one_in(spoil, 4) ? frame->length : headers);
}

static void flip_bits(struct spoil *spoil, struct spoil_frame *frame)
{
  for (uint32_t n = 1 + below(spoil, 8); n > 0 && frame->length > 0; n--)
    frame->bytes[place_in(spoil, frame)] ^= (uint8_t)(1u << below(spoil, 8));
}

static void replace_bytes(struct spoil *spoil, struct spoil_frame *frame)
{
  for (uint32_t n = 1 + below(spoil, 6); n > 0 && frame->length > 0; n--)
    frame->bytes[place_in(spoil, frame)] = (uint8_t)draw(spoil);
}

static void cut_short(struct spoil *spoil, struct spoil_frame *frame)
{
  frame->length = below(spoil, one_in(spoil, 2) ? frame->length + 1 : HEADERS);
}

static void lengthen(struct spoil *spoil, struct spoil_frame *frame)
{
  uint32_t more = below(spoil, SPOIL_LARGEST - frame->length + 1);
  if (!one_in(spoil, 8) && more > 64)
    more = below(spoil, 64);
  noise(spoil, frame->bytes + frame->length, more);
  frame->length += more;
}

/* Sets a two-byte field to a boundary value. */
static void set_extreme(struct spoil *spoil, struct spoil_frame *frame)
{
  static const uint16_t values[] = {0, 1, 0x7fff, 0x8000, 0xffff, 20, 40, 1500};
  uint16_t value = one_in(spoil, 4) ? (uint16_t)(frame->length - below(spoil, 4))
                                    : values[below(spoil, sizeof values / sizeof values[0])];
  uint32_t at = place_in(spoil, frame) & ~1u;
  if (at + 2 > frame->length)
    return;
  frame->bytes[at] = (uint8_t)(value >> 8);
  frame->bytes[at + 1] = (uint8_t)value;
}

/* Returns the offset of the TCP header, or 0 if the frame is too short for IPv4 and TCP. */
static uint32_t tcp_at(const struct spoil_frame *frame)
{
  uint32_t at = ETHERNET + (frame->length > ETHERNET ? (frame->bytes[ETHERNET] & 15u) * 4 : 0);
  return at >= ETHERNET + IP_LEAST && at + 20 <= frame->length ? at : 0;
}

static void change_options(struct spoil *spoil, struct spoil_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (!tcp)
    return;
  uint32_t room = frame->length - tcp - 20;
  noise(spoil, frame->bytes + tcp + 20, room < 40 ? room : 40);
  /* Known kinds, with lengths that may not fit. */
  for (uint32_t i = 0; i + 2 <= room && i < 40; i += 1 + below(spoil, 10)) {
    frame->bytes[tcp + 20 + i] = (uint8_t)below(spoil, 10);
    frame->bytes[tcp + 20 + i + 1] = (uint8_t)below(spoil, 42);
  }
  frame->bytes[tcp + 12] = (uint8_t)(below(spoil, 16) << 4);
}

static void change_flags(struct spoil *spoil, struct spoil_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (tcp)
    frame->bytes[tcp + 13] = (uint8_t)draw(spoil);
}

/* Changes the sequence or acknowledgement number, to any value or to one near the old value. */
static void move_numbers(struct spoil *spoil, struct spoil_frame *frame)
{
  uint32_t tcp = tcp_at(frame);
  if (!tcp)
    return;
  uint8_t *at = frame->bytes + tcp + (one_in(spoil, 2) ? 4 : 8);
  uint32_t value = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
  uint32_t near = one_in(spoil, 2) ? 16 : 1u << 21;
  value = one_in(spoil, 3) ? (uint32_t)draw(spoil) : value + below(spoil, 2 * near) - near;
  for (int i = 0; i < 4; i++)
    at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Appends the end of another frame to the start of this one. */
static void splice(struct spoil *spoil, struct spoil_frame *frame)
{
  const struct spoil_frame *other = &spoil->samples[below(spoil, spoil->kept)];
  uint32_t at = place_in(spoil, frame);
  if (at >= other->length)
    return;
  memcpy(frame->bytes + at, other->bytes + at, other->length - at);
  frame->length = other->length;
}

static void (*const changes[])(struct spoil *, struct spoil_frame *) = {
    flip_bits,      replace_bytes, cut_short,    lengthen, set_extreme,
    change_options, change_flags,  move_numbers, splice,
};

/* Without this the stack would look at nothing after the IPv4 header. */
static void mend_ip_checksum(struct spoil_frame *frame)
{
  uint32_t size = frame->length > ETHERNET ? (frame->bytes[ETHERNET] & 15u) * 4 : 0, sum = 0;
  uint8_t *ip = frame->bytes + ETHERNET;
  if (size < IP_LEAST || ETHERNET + size > frame->length)
    return;
  ip[10] = ip[11] = 0;
  for (uint32_t i = 0; i < size; i += 2)
    sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
  while (sum >> 16)
    sum = (sum & 0xffff) + (sum >> 16);
  ip[10] = (uint8_t)(~sum >> 8);
  ip[11] = (uint8_t)~sum;
}

static void spoil_sample(struct spoil *spoil, struct spoil_frame *out)
{
  const struct spoil_frame *sample = &spoil->samples[below(spoil, spoil->kept)];
  memcpy(out, sample, offsetof(struct spoil_frame, bytes) + sample->length);
  for (uint32_t n = 1 + below(spoil, 3); n > 0; n--)
    changes[below(spoil, sizeof changes / sizeof changes[0])](spoil, out);
  if (!one_in(spoil, 4))
    mend_ip_checksum(out);
  out->vouched = one_in(spoil, 2);
  if (one_in(spoil, 16))
    out->segment_size = (uint16_t)draw(spoil);
}

/* Random bytes, often after headers that a host accepts. */
static void make_noise(struct spoil *spoil, struct spoil_frame *out)
{
  static const uint32_t heads[] = {0, ETHERNET, ETHERNET + IP_LEAST, ETHERNET + 2 * IP_LEAST};
  uint32_t head = heads[below(spoil, sizeof heads / sizeof heads[0])];
  out->length = below(spoil, NOISE_LARGEST);
  out->segment_size = 0;
  out->vouched = one_in(spoil, 2);
  noise(spoil, out->bytes, out->length);
  if (spoil->kept && out->length >= head)
    memcpy(out->bytes, spoil->samples[below(spoil, spoil->kept)].bytes, head);
}

void spoil_next(struct spoil *spoil, struct spoil_frame *out)
{
  if (spoil->kept == 0 || one_in(spoil, 3))
    make_noise(spoil, out);
  else
    spoil_sample(spoil, out);
}
