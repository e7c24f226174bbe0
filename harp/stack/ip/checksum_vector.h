/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of the Internet checksum, with the widest vector instructions of this CPU. It can
 * copy the bytes in the same pass, because they are in a register already.
 *
 * A sum adds words in native byte order, at any alignment (RFC 1071, 2 (B)). Fold it to 16 bits
 * and store it without a byte swap. It loses no carry below 2^32 bytes. Thread: any; the functions
 * keep no state.
 */
#ifndef HARP_STACK_CHECKSUM_VECTOR_H
#define HARP_STACK_CHECKSUM_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One implementation. to: the destination of the copy; NULL: no copy. It must not overlap from. */
struct harp_summer {
  const char *name;
  bool (*there)(void); /* whether this CPU supports it */
  uint64_t (*sum)(uint8_t *to, const uint8_t *from, size_t length);
};

/* The implementations in this build, the fastest first. Every CPU supports the last one. */
extern const struct harp_summer harp_summers[];
extern const unsigned harp_summer_count;

/* Sums with the first implementation that this CPU supports. */
uint64_t harp_sum_bytes(uint8_t *to, const uint8_t *from, size_t length);

#endif
