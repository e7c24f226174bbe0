/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Malformed frames: random bytes, and changed copies of real frames. The output depends only on the
 * seed and the learned frames.
 */
#ifndef HARP_TESTS_GARBAGE_CORRUPT_H
#define HARP_TESTS_GARBAGE_CORRUPT_H

#include <stdbool.h>
#include <stdint.h>

enum { CORRUPT_SAMPLES = 256, CORRUPT_LARGEST = 9216 /* bytes */ };

struct corrupt_frame {
  uint32_t length;
  /* payload bytes per segment, as if the device had merged segments; 0: not merged */
  uint16_t segment_size;
  bool checksum_good; /* as if the device had verified the checksum */
  uint8_t bytes[CORRUPT_LARGEST];
};

struct corrupt {
  uint64_t state;
  unsigned seen, kept;
  struct corrupt_frame samples[CORRUPT_SAMPLES];
};

void corrupt_seed(struct corrupt *corrupt, uint64_t seed);
/* Keeps a real frame as a sample, unless it is too large. Later frames replace earlier ones at
 * random. */
void corrupt_learn(struct corrupt *corrupt, const uint8_t *bytes, uint32_t length,
                   uint16_t segment_size, bool checksum_good);
void corrupt_next(struct corrupt *corrupt, struct corrupt_frame *out);

#endif
