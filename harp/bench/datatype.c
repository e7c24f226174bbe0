/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/datatype.h"

#include <float.h>
#include <string.h>

#include "harp/bench/pattern.h"

static uint32_t word(const struct origin *origin, uint64_t index)
{
  return pattern_word(origin->rank, origin->iteration, index);
}

static uint64_t two_words(const struct origin *origin, uint64_t index)
{
  return word(origin, 2 * index) | (uint64_t)word(origin, 2 * index + 1) << 32;
}

/* Bits of a whole number, so that the sum over all ranks fits into the digits of a type. */
static unsigned bits_for(const struct origin *origin, unsigned digits)
{
  unsigned bits = digits;
  for (uint32_t ranks = origin->ranks; ranks > 1; ranks = ranks / 2 + ranks % 2) {
    bits--;
  }
  return bits;
}

static float whole_float(const struct origin *origin, uint64_t index)
{
  return (float)(word(origin, index) >> (32 - bits_for(origin, FLT_MANT_DIG)));
}

static double whole_double(const struct origin *origin, uint64_t index)
{
  return (double)(two_words(origin, index) >> (64 - bits_for(origin, DBL_MANT_DIG)));
}

/* Signed integers have the functions of unsigned ones: the bits of their sums are the same. */
#define SUMMED(label, element, value)                                                       \
  static void fill_##label(void *data, size_t size, const struct origin *origin)            \
  {                                                                                         \
    element *to = data;                                                                     \
    uint64_t first = origin->offset / sizeof(*to);                                          \
    for (size_t i = 0; i < size / sizeof(*to); i++)                                         \
      to[i] = value(origin, first + i);                                                     \
  }                                                                                         \
  static void add_##label(void *to, const void *left, const void *right, size_t size)       \
  {                                                                                         \
    element *sum = to;                                                                      \
    const element *a = left, *b = right;                                                    \
    for (size_t i = 0; i < size / sizeof(*sum); i++)                                        \
      sum[i] = a[i] + b[i];                                                                 \
  }                                                                                         \
  static uint64_t check_##label(const void *data, size_t size, const struct origin *origin) \
  {                                                                                         \
    const element *found = data;                                                            \
    struct origin from = *origin;                                                           \
    uint64_t wrong = 0, first = origin->offset / sizeof(*found);                            \
    for (size_t i = 0; i < size / sizeof(*found); i++) {                                    \
      element sum = 0;                                                                      \
      for (from.rank = 0; from.rank < origin->ranks; from.rank++)                           \
        sum += value(&from, first + i);                                                     \
      wrong += found[i] != sum;                                                             \
    }                                                                                       \
    return wrong;                                                                           \
  }

SUMMED(32, uint32_t, word)
SUMMED(64, uint64_t, two_words)
SUMMED(float, float, whole_float)
SUMMED(double, double, whole_double)

#define TYPE(label, text, element) \
  {.name = (text),                 \
   .size = sizeof(element),        \
   .fill = fill_##label,           \
   .add = add_##label,             \
   .check_sum = check_##label}

const struct datatype datatype_uint8 = {.name = "uint8", .size = 1};
const struct datatype datatype_uint32 = TYPE(32, "uint32", uint32_t);

static const struct datatype others[] = {
    TYPE(32, "int32", int32_t),    TYPE(64, "int64", int64_t),      TYPE(64, "uint64", uint64_t),
    TYPE(float, "float32", float), TYPE(double, "float64", double),
};

const struct datatype *datatype_find(const char *name)
{
  if (strcmp(name, datatype_uint32.name) == 0) {
    return &datatype_uint32;
  }
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    if (strcmp(others[i].name, name) == 0) {
      return &others[i];
    }
  }
  return NULL;
}
