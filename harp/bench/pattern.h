/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test data that identify their origin. Each 32-bit word depends on rank, iteration and offset, so
 * a lost, misplaced or stale byte is detected.
 */
#ifndef HARP_BENCH_PATTERN_H
#define HARP_BENCH_PATTERN_H

#include <stddef.h>
#include <stdint.h>

enum { PATTERN_POISON = 0xa5 };

static inline uint32_t pattern_word(uint32_t rank, uint32_t iteration, uint64_t index)
{
  uint32_t x = (uint32_t)index * 0x9e3779b1u + (uint32_t)(index >> 32);
  x ^= (rank + 1) * 0x85ebca77u + iteration * 0xc2b2ae3du;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  return x ^ x >> 13;
}

/* offset: position of data in the rank's message, bytes, a multiple of 4. */
void pattern_fill(void *data, size_t size, uint32_t rank, uint32_t iteration, uint64_t offset);
/* Returns the number of wrong bytes. */
uint64_t pattern_check(const void *data, size_t size, uint32_t rank, uint32_t iteration,
                       uint64_t offset);

#endif
