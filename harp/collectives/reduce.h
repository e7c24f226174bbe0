/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of arrays. Operands are folded in a wide type, which is float32 for the 16-bit floats
 * and the type itself for all others. Counts are elements. Pure functions: any thread.
 */
#ifndef HARP_COLLECTIVES_REDUCE_H
#define HARP_COLLECTIVES_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "harp/collectives/folds.h"

struct reduction {
  enum harp_dtype dtype;
  size_t size, wide_size; /* bytes of an element, and of its wide form */
  unsigned divisor;       /* of an average; else 1 */
  fold_function fold;
  const struct folds *folds; /* for this CPU */
};

/* false: the type has no such reduction. */
bool reduction_init(struct reduction *reduction, int dtype, int op, int ranks);

/* Whether the wide form is the type itself. */
static inline bool reduction_is_plain(const struct reduction *reduction)
{
  return reduction->size == reduction->wide_size;
}

/* wide = elements */
void reduction_load(const struct reduction *reduction, void *wide, const void *from, size_t count);
/* wide = wide OP elements */
void reduction_fold(const struct reduction *reduction, void *wide, const void *from, size_t count);
/* elements = wide / divisor; to may be wide itself if the form is plain */
void reduction_store(const struct reduction *reduction, void *to, const void *wide, size_t count);

#endif
