/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of reductions and of top-k, for several instruction sets. All sets give the same bits,
 * so ranks on different CPUs agree. Counts are elements. Pure functions: any thread.
 */
#ifndef HARP_COLLECTIVES_FOLDS_H
#define HARP_COLLECTIVES_FOLDS_H

#include <stddef.h>
#include <stdint.h>

#include "harp/collectives/candidates.h"
#include "harp/collectives/collectives.h"

/* to = to OP from, both in the wide type of reduce.h */
typedef void (*fold_function)(void *restrict to, const void *restrict from, size_t count);

struct folds {
  fold_function fold[HARP_DTYPES][HARP_REDUCTIONS]; /* NULL: the type has no such reduction */
  /* Of HARP_FLOAT16 and HARP_BFLOAT16. narrow: to = wide / divisor */
  void (*widen)(enum harp_dtype dtype, float *restrict wide, const uint16_t *restrict from,
                size_t count);
  void (*narrow)(enum harp_dtype dtype, uint16_t *restrict to, const float *restrict wide,
                 size_t count, float divisor);
  candidates_function *candidates;
};

/* The sets that this CPU can run, from the fastest (0) to the plain one. NULL: no more. */
const struct folds *folds_choose(unsigned index);

#endif
