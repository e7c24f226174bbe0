/* SPDX-License-Identifier: Apache-2.0 */
/* A received segment, parsed once. */
#ifndef HARP_STACK_TCP_SEGMENT_H
#define HARP_STACK_TCP_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>
enum {
  TCP_MAX_SACKS = 4,
};

struct harp_segment {
  uint32_t source, destination; /* addresses, network order */
  uint16_t source_port, destination_port;
  uint32_t seq, ack;
  uint32_t window; /* as on the wire, unscaled */
  uint8_t flags;
  bool has_timestamp, sack_permitted;
  int8_t window_scale; /* -1: absent */
  uint8_t sack_count;
  uint16_t mss; /* 0: absent */
  uint32_t timestamp, echo;
  struct {
    uint32_t start, end;
  } sack[TCP_MAX_SACKS];
  const uint8_t *payload;
  uint32_t length;       /* payload bytes */
  uint16_t segment_size; /* payload per segment of a merged frame; else 0 */
};

#endif
