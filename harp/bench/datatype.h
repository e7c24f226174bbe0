/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elements of messages. Test data of a type that can be summed have an exact sum over all
 * ranks, whatever the order of the additions: integers wrap, and floating-point values are whole
 * numbers that leave room for the sum.
 */
#ifndef HARP_BENCH_DATATYPE_H
#define HARP_BENCH_DATATYPE_H

#include <stddef.h>
#include <stdint.h>

/* Where test data come from and where they belong. */
struct origin {
  uint32_t rank, ranks, iteration;
  uint64_t offset; /* position of the data in the message, bytes, a multiple of 8 */
};

struct datatype {
  const char *name;
  size_t size; /* bytes */
  /* The rest is NULL if elements cannot be summed. Sizes are bytes, multiples of size. */
  /* Writes the elements that origin.rank contributes. */
  void (*fill)(void *data, size_t size, const struct origin *origin);
  /* to may be left or right. */
  void (*add)(void *to, const void *left, const void *right, size_t size);
  /* Returns the number of elements that differ from the sum over all ranks. origin.rank does not
   * matter. */
  uint64_t (*check_sum)(const void *data, size_t size, const struct origin *origin);
};

extern const struct datatype datatype_uint8, datatype_uint32;

/* A type that can be summed. NULL: there is none of this name. */
const struct datatype *datatype_find(const char *name);

#endif
