/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that no sound host would send: noise, and real ones with something
 * changed. What comes out is a function of the seed and of the frames learned.
 */
#ifndef TESTS_WIRE_SPOIL_H
#define TESTS_WIRE_SPOIL_H

#include <stdbool.h>
#include <stdint.h>

enum { SPOIL_SAMPLES = 256, SPOIL_LARGEST = 9216 /* bytes */ };

struct spoil_frame {
  uint32_t length;
  uint16_t segment_size; /* as if the device had merged segments of so many bytes; 0: not */
  bool vouched;          /* as if the device had found the checksum good */
  uint8_t bytes[SPOIL_LARGEST];
};

struct spoil {
  uint64_t state;
  unsigned seen, kept;
  struct spoil_frame samples[SPOIL_SAMPLES];
};

void spoil_seed(struct spoil *spoil, uint64_t seed);
/* Keeps a real frame to make others of, as long as it is not too large; later
 * ones take the places of earlier ones by chance. */
void spoil_learn(struct spoil *spoil, const uint8_t *bytes, uint32_t length, uint16_t segment_size,
                 bool vouched);
void spoil_next(struct spoil *spoil, struct spoil_frame *out);

#endif
