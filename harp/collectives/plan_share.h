/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares: each rank folds a part of the elements, and takes it in slices. All ranks compute the
 * same shares. Pure functions: any thread.
 */
#ifndef HARP_COLLECTIVES_PLAN_SHARE_H
#define HARP_COLLECTIVES_PLAN_SHARE_H

#include "harp/collectives/plan.h"

struct share {
  uint8_t *data;
  size_t size;                 /* bytes of an element */
  size_t count, slice, slices; /* elements, elements, number */
};

struct share share_make(const struct reduction *reduction, void *data, size_t count);

/* Divides a view into shares for all ranks. The last ones may be smaller, or empty. */
void share_equally(struct share *shares, int ranks, const struct reduction *reduction,
                   const struct harp_view *view);

/* Elements of a slice. */
size_t share_slice_count(const struct share *share, size_t slice);

static inline size_t share_slice_bytes(const struct share *share, size_t slice)
{
  return share_slice_count(share, slice) * share->size;
}

static inline uint8_t *share_slice_data(const struct share *share, size_t slice)
{
  return share->data + slice * share->slice * share->size;
}

#endif
