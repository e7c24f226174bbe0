/* SPDX-License-Identifier: Apache-2.0 */
/* Writes frames as pcapng: one interface per host, with the headers and some payload. */
#include <string.h>

#include "tests/sim/sim.h"

enum {
  SECTION = 0x0a0d0d0a,
  INTERFACE = 1,
  PACKET = 6,
  RAW_IPV4 = 228, /* link type: starts with the IPv4 header */
  OPTION_FLAGS = 2,
  OPTION_RESOLUTION = 9,
  OPTION_NAME = 2,
  SNAP = 128, /* recorded bytes per frame */
};

struct block {
  uint32_t length; /* in words, so far */
  uint32_t words[64 + SNAP / 4];
};

static void put(struct block *block, uint32_t word) { block->words[block->length++] = word; }

static void put_bytes(struct block *block, const void *data, uint32_t length)
{
  uint32_t words = (length + 3) / 4;
  memset(block->words + block->length, 0, 4 * words);
  memcpy(block->words + block->length, data, length);
  block->length += words;
}

static void put_option(struct block *block, uint16_t code, const void *data, uint16_t length)
{
  put(block, code | (uint32_t)length << 16);
  put_bytes(block, data, length);
}

static void write_block(FILE *out, uint32_t kind, const struct block *block)
{
  uint32_t total = 4 * block->length + 12;
  uint32_t head[2] = {kind, total};
  fwrite(head, sizeof head, 1, out);
  fwrite(block->words, 4, block->length, out);
  fwrite(&total, sizeof total, 1, out);
}

void capture_begin(struct sim *sim)
{
  if (!sim->capture) {
    return;
  }
  struct block section = {0};
  put(&section, 0x1a2b3c4d);
  put(&section, 1);
  put(&section, UINT32_MAX); /* length of the section: unknown */
  put(&section, UINT32_MAX);
  write_block(sim->capture, SECTION, &section);
  for (uint64_t i = 0; i < sim->spec.hosts; i++) {
    struct block interface = {0};
    char name[16];
    uint8_t nanoseconds = 9;
    put(&interface, RAW_IPV4);
    put(&interface, SNAP);
    snprintf(name, sizeof name, "host%u", (unsigned)i);
    put_option(&interface, OPTION_NAME, name, (uint16_t)strlen(name));
    put_option(&interface, OPTION_RESOLUTION, &nanoseconds, 1);
    put(&interface, 0);
    write_block(sim->capture, INTERFACE, &interface);
  }
}

void capture_frame(struct sim *sim, uint16_t host, struct sim_frame *frame, bool sent)
{
  if (!sim->capture) {
    return;
  }
  device_complete_checksum(frame);
  uint32_t kept = frame->length < SNAP ? frame->length : SNAP;
  uint32_t flags = sent ? 2 : 1;
  struct block packet = {0};
  put(&packet, host);
  put(&packet, (uint32_t)(sim->now >> 32));
  put(&packet, (uint32_t)sim->now);
  put(&packet, kept);
  put(&packet, frame->length);
  put_bytes(&packet, frame->data, kept);
  put_option(&packet, OPTION_FLAGS, &flags, sizeof flags);
  put(&packet, 0);
  write_block(sim->capture, PACKET, &packet);
}
