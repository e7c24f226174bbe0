/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The build compiles this file once for each instruction set, with its flags and with names for
 * what it defines: HARP_FOLDS is its struct folds, and HARP_CANDIDATES its function of
 * candidates.c. The flags forbid to contract a product and a sum, so each set gives the same bits.
 */
#include "harp/collectives/folds.h"

#include <stdbool.h>
#include <string.h>

#include "harp/collectives/half.h"

/* Loops that the compiler vectorises (-O3). */
#define FOLD(name, type, expression)                                             \
  static void name(void *restrict to_, const void *restrict from_, size_t count) \
  {                                                                              \
    type *restrict to = to_;                                                     \
    const type *restrict from = from_;                                           \
    for (size_t i = 0; i < count; i++) {                                         \
      type a = to[i], b = from[i];                                               \
      to[i] = (type)(expression);                                                \
    }                                                                            \
  }

#define ORDERED(suffix, type)             \
  FOLD(min_##suffix, type, a < b ? a : b) \
  FOLD(max_##suffix, type, a > b ? a : b)

/* Sums wrap, and have the same bits for signed numbers. 1u keeps short operands unsigned. */
#define WORDS(bits)                                \
  FOLD(sum_##bits, uint##bits##_t, 1u * a + b)     \
  FOLD(product_##bits, uint##bits##_t, 1u * a * b) \
  FOLD(and_##bits, uint##bits##_t, a &b)           \
  FOLD(or_##bits, uint##bits##_t, a | b)           \
  FOLD(xor_##bits, uint##bits##_t, a ^ b)          \
  ORDERED(u##bits, uint##bits##_t)                 \
  ORDERED(i##bits, int##bits##_t)

/* Equal numbers with different bits are +0 and -0. -0 is the lesser one (IEEE 754-2019, 9.6), in
 * both orders of the operands: two ranks may have different ones, and must get the same bits. */
#define ZEROS(suffix, type, bits_type)                         \
  static inline type zero_##suffix(type a, type b, bool least) \
  {                                                            \
    bits_type x, y;                                            \
    memcpy(&x, &a, sizeof x);                                  \
    memcpy(&y, &b, sizeof y);                                  \
    x = least ? x | y : x & y;                                 \
    memcpy(&a, &x, sizeof a);                                  \
    return a;                                                  \
  }

/* A NaN in either operand stays. */
#define FLOATS(suffix, type, bits_type)                                                       \
  ZEROS(suffix, type, bits_type)                                                              \
  FOLD(sum_##suffix, type, a + b)                                                             \
  FOLD(product_##suffix, type, a *b)                                                          \
  FOLD(min_##suffix, type, ((a < b) | (a != a)) ? a : a == b ? zero_##suffix(a, b, true) : b) \
  FOLD(max_##suffix, type, ((a > b) | (a != a)) ? a : a == b ? zero_##suffix(a, b, false) : b)

WORDS(8)
WORDS(16)
WORDS(32)
WORDS(64)
FLOATS(f32, float, uint32_t)
FLOATS(f64, double, uint64_t)

#define WORD_FOLDS(bits, sign)                                                                       \
  {                                                                                                  \
      [HARP_SUM] = sum_##bits,       [HARP_PRODUCT] = product_##bits, [HARP_MIN] = min_##sign##bits, \
      [HARP_MAX] = max_##sign##bits, [HARP_BAND] = and_##bits,        [HARP_BOR] = or_##bits,        \
      [HARP_BXOR] = xor_##bits,      [HARP_AVERAGE] = sum_##bits,                                    \
  }
#define FLOAT_FOLDS(suffix)                                                                    \
  {                                                                                            \
      [HARP_SUM] = sum_##suffix, [HARP_PRODUCT] = product_##suffix, [HARP_MIN] = min_##suffix, \
      [HARP_MAX] = max_##suffix, [HARP_AVERAGE] = sum_##suffix,                                \
  }

static void widen(enum harp_dtype dtype, float *restrict wide, const uint16_t *restrict from,
                  size_t count)
{
  if (dtype == HARP_BFLOAT16) {
    for (size_t i = 0; i < count; i++) {
      wide[i] = bfloat16_to_float(from[i]);
    }
  } else {
    for (size_t i = 0; i < count; i++) {
      wide[i] = float16_to_float(from[i]);
    }
  }
}

static void narrow(enum harp_dtype dtype, uint16_t *restrict to, const float *restrict wide,
                   size_t count, float divisor)
{
  if (dtype == HARP_BFLOAT16) {
    for (size_t i = 0; i < count; i++) {
      to[i] = float_to_bfloat16(wide[i] / divisor);
    }
  } else {
    for (size_t i = 0; i < count; i++) {
      to[i] = float_to_float16(wide[i] / divisor);
    }
  }
}

const struct folds HARP_FOLDS = {
    .fold =
        {
            [HARP_UINT8] = WORD_FOLDS(8, u),
            [HARP_INT8] = WORD_FOLDS(8, i),
            [HARP_UINT16] = WORD_FOLDS(16, u),
            [HARP_INT16] = WORD_FOLDS(16, i),
            [HARP_UINT32] = WORD_FOLDS(32, u),
            [HARP_INT32] = WORD_FOLDS(32, i),
            [HARP_UINT64] = WORD_FOLDS(64, u),
            [HARP_INT64] = WORD_FOLDS(64, i),
            [HARP_FLOAT32] = FLOAT_FOLDS(f32),
            [HARP_FLOAT64] = FLOAT_FOLDS(f64),
            [HARP_FLOAT16] = FLOAT_FOLDS(f32),
            [HARP_BFLOAT16] = FLOAT_FOLDS(f32),
            [HARP_BOOL] =
                {
                    [HARP_SUM] = or_8,
                    [HARP_PRODUCT] = and_8,
                    [HARP_MIN] = and_8,
                    [HARP_MAX] = or_8,
                    [HARP_BAND] = and_8,
                    [HARP_BOR] = or_8,
                    [HARP_BXOR] = xor_8,
                },
        },
    .widen = widen,
    .narrow = narrow,
    .candidates = HARP_CANDIDATES,
};
