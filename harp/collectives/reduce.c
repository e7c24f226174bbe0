/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/reduce.h"

#include <stdint.h>
#include <string.h>

#include "harp/collectives/half.h"

enum { BLOCK = 512 }; /* elements of 16 bits that are widened at once: their floats stay in L1 */

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

/* A NaN in either operand stays. */
#define FLOATS(suffix, type)                           \
  FOLD(sum_##suffix, type, a + b)                      \
  FOLD(product_##suffix, type, a *b)                   \
  FOLD(min_##suffix, type, (a < b) | (a != a) ? a : b) \
  FOLD(max_##suffix, type, (a > b) | (a != a) ? a : b)

WORDS(8)
WORDS(16)
WORDS(32)
WORDS(64)
FLOATS(f32, float)
FLOATS(f64, double)

typedef void (*fold_function)(void *restrict, const void *restrict, size_t);

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

static const fold_function folds[HARP_DTYPES][HARP_REDUCTIONS] = {
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
};

static const size_t sizes[HARP_DTYPES] = {
    [HARP_UINT8] = 1,   [HARP_INT8] = 1,    [HARP_UINT16] = 2,  [HARP_INT16] = 2,
    [HARP_UINT32] = 4,  [HARP_INT32] = 4,   [HARP_UINT64] = 8,  [HARP_INT64] = 8,
    [HARP_FLOAT32] = 4, [HARP_FLOAT64] = 8, [HARP_FLOAT16] = 2, [HARP_BFLOAT16] = 2,
    [HARP_BOOL] = 1,
};

bool reduction_init(struct reduction *reduction, int dtype, int op, int ranks)
{
  if (dtype < 0 || dtype >= HARP_DTYPES || op < 0 || op >= HARP_REDUCTIONS || !folds[dtype][op])
    return false;
  bool is_short = dtype == HARP_FLOAT16 || dtype == HARP_BFLOAT16;
  *reduction = (struct reduction){
      .dtype = (enum harp_dtype)dtype,
      .size = sizes[dtype],
      .wide_size = is_short ? sizeof(float) : sizes[dtype],
      .divisor = op == HARP_AVERAGE ? (unsigned)ranks : 1,
      .fold = folds[dtype][op],
  };
  return true;
}

static void widen(const struct reduction *reduction, float *restrict wide,
                  const uint16_t *restrict from, size_t count)
{
  if (reduction->dtype == HARP_BFLOAT16) {
    for (size_t i = 0; i < count; i++)
      wide[i] = bfloat16_to_float(from[i]);
  } else {
    for (size_t i = 0; i < count; i++)
      wide[i] = float16_to_float(from[i]);
  }
}

static void narrow(const struct reduction *reduction, uint16_t *restrict to,
                   const float *restrict wide, size_t count)
{
  float divisor = (float)reduction->divisor;
  if (reduction->dtype == HARP_BFLOAT16) {
    for (size_t i = 0; i < count; i++)
      to[i] = float_to_bfloat16(wide[i] / divisor);
  } else {
    for (size_t i = 0; i < count; i++)
      to[i] = float_to_float16(wide[i] / divisor);
  }
}

void reduction_load(const struct reduction *reduction, void *wide, const void *from, size_t count)
{
  if (!reduction_is_plain(reduction))
    widen(reduction, wide, from, count);
  else if (wide != from)
    memcpy(wide, from, count * reduction->size);
}

void reduction_fold(const struct reduction *reduction, void *wide, const void *from, size_t count)
{
  if (reduction_is_plain(reduction)) {
    reduction->fold(wide, from, count);
    return;
  }
  float block[BLOCK];
  float *to = wide;
  const uint16_t *at = from;
  for (size_t done = 0; done < count; done += BLOCK) {
    size_t part = count - done < BLOCK ? count - done : BLOCK;
    widen(reduction, block, at + done, part);
    reduction->fold(to + done, block, part);
  }
}

/* wider: a type that holds each element and the divisor. */
#define DIVIDE(type, wider)                               \
  {                                                       \
    type *elements = to;                                  \
    for (size_t i = 0; i < count; i++)                    \
      elements[i] = (type)(elements[i] / (wider)divisor); \
    break;                                                \
  }

static void divide(enum harp_dtype dtype, void *to, size_t count, unsigned divisor)
{
  switch (dtype) {
  case HARP_UINT8: DIVIDE(uint8_t, uint64_t)
  case HARP_INT8: DIVIDE(int8_t, int64_t)
  case HARP_UINT16: DIVIDE(uint16_t, uint64_t)
  case HARP_INT16: DIVIDE(int16_t, int64_t)
  case HARP_UINT32: DIVIDE(uint32_t, uint64_t)
  case HARP_INT32: DIVIDE(int32_t, int64_t)
  case HARP_UINT64: DIVIDE(uint64_t, uint64_t)
  case HARP_INT64: DIVIDE(int64_t, int64_t)
  case HARP_FLOAT32: DIVIDE(float, float)
  case HARP_FLOAT64: DIVIDE(double, double)
  default: break; /* narrow() divides the others, and bool has no average */
  }
}

void reduction_store(const struct reduction *reduction, void *to, const void *wide, size_t count)
{
  if (!reduction_is_plain(reduction)) {
    narrow(reduction, to, wide, count);
    return;
  }
  if (to != wide)
    memcpy(to, wide, count * reduction->size);
  if (reduction->divisor > 1)
    divide(reduction->dtype, to, count, reduction->divisor);
}
