/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/reduce.h"

#include <stdint.h>
#include <string.h>

#include "harp/collectives/folds.h"

enum { BLOCK = 512 }; /* elements of 16 bits that are widened at once: their floats stay in L1 */

static const size_t sizes[HARP_DTYPES] = {
    [HARP_UINT8] = 1,   [HARP_INT8] = 1,    [HARP_UINT16] = 2,  [HARP_INT16] = 2,
    [HARP_UINT32] = 4,  [HARP_INT32] = 4,   [HARP_UINT64] = 8,  [HARP_INT64] = 8,
    [HARP_FLOAT32] = 4, [HARP_FLOAT64] = 8, [HARP_FLOAT16] = 2, [HARP_BFLOAT16] = 2,
    [HARP_BOOL] = 1,
};

bool reduction_init(struct reduction *reduction, int dtype, int op, int ranks)
{
  const struct folds *folds = folds_choose(0);
  if (dtype < 0 || dtype >= HARP_DTYPES || op < 0 || op >= HARP_REDUCTIONS ||
      !folds->fold[dtype][op]) {
    return false;
  }
  bool is_short = dtype == HARP_FLOAT16 || dtype == HARP_BFLOAT16;
  *reduction = (struct reduction){
      .dtype = (enum harp_dtype)dtype,
      .size = sizes[dtype],
      .wide_size = is_short ? sizeof(float) : sizes[dtype],
      .divisor = op == HARP_AVERAGE ? (unsigned)ranks : 1,
      .fold = folds->fold[dtype][op],
      .folds = folds,
  };
  return true;
}

void reduction_load(const struct reduction *reduction, void *wide, const void *from, size_t count)
{
  if (!reduction_is_plain(reduction)) {
    reduction->folds->widen(reduction->dtype, wide, from, count);
  } else if (wide != from) {
    memcpy(wide, from, count * reduction->size);
  }
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
    reduction->folds->widen(reduction->dtype, block, at + done, part);
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
    reduction->folds->narrow(reduction->dtype, to, wide, count, (float)reduction->divisor);
    return;
  }
  if (to != wide) {
    memcpy(to, wide, count * reduction->size);
  }
  if (reduction->divisor > 1) {
    divide(reduction->dtype, to, count, reduction->divisor);
  }
}
