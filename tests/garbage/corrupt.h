/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Malformed frames: random bytes, and changed copies of real frames. The output depends only on the
 * seed and the learned frames.
 */
#ifndef TESTS_WIRE_SPOIL_H
#define TESTS_WIRE_SPOIL_H

#include <stdbool.h>
#include <stdint.h>

enum { SPOIL_SAMPLES = 256, SPOIL_LARGEST = 9216 /* bytes */ };

struct spoil_frame {
  uint32_t length;
  /* payload bytes per segment, as if the device had merged segments; 0: not merged */
  uint16_t segment_size;
  bool vouched; /* as if the device had verified the checksum */
  uint8_t bytes[SPOIL_LARGEST];
};

struct spoil {
  uint64_t state;
  unsigned seen, kept;
  struct spoil_frame samples[SPOIL_SAMPLES];
};

void spoil_seed(struct spoil *spoil, uint64_t seed);
/* Keeps a real frame as a sample, unless it is too large. Later frames replace earlier ones at
 * random. */
void spoil_learn(struct spoil *spoil, const uint8_t *bytes, uint32_t length, uint16_t segment_size,
                 bool vouched);
void spoil_next(struct spoil *spoil, struct spoil_frame *out);

#endif
