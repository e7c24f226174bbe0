/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of the Internet checksum by the widest instructions of this
 * CPU, and copying on the way: a byte that is summed is in a register already.
 *
 * A sum is one of native words, wherever they lie (RFC 1071, 2 (B)): to be
 * folded to 16 bits, and to be stored as it is. No carry is lost below 2^32
 * bytes. Thread: any; nothing is kept, not even the choice.
 */
#ifndef HARP_STACK_CHECKSUM_VECTOR_H
#define HARP_STACK_CHECKSUM_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One way to sum. to: where the bytes are copied as well; NULL: nowhere. It
 * must not overlap from. */
struct harp_summer {
  const char *name;
  bool (*there)(void); /* whether this CPU can */
  uint64_t (*sum)(uint8_t *to, const uint8_t *from, size_t length);
};

/* All that this build has, the best first; the last is there on every CPU. */
extern const struct harp_summer harp_summers[];
extern const unsigned harp_summer_count;

/* By the first of them that is there. */
uint64_t harp_sum_bytes(uint8_t *to, const uint8_t *from, size_t length);

#endif
