/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan_share.h"

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

struct share share_make(const struct reduction *reduction, void *data, size_t count)
{
  size_t bytes = count * reduction->size;
  struct share share = {.data = data,
                        .size = reduction->size,
                        .count = count,
                        .slice = plan_slice(bytes, LINK_SLICE) / reduction->size};
  share.slices = (count + share.slice - 1) / share.slice;
  return share;
}

void share_equally(struct share *shares, int ranks, const struct reduction *reduction,
                   const struct harp_view *view)
{
  size_t unit = 64 / reduction->size, count = view->bytes / reduction->size;
  size_t each = ((count + (size_t)ranks - 1) / (size_t)ranks + unit - 1) / unit * unit;
  for (size_t rank = 0; rank < (size_t)ranks; rank++) {
    size_t first = least(rank * each, count), last = least(first + each, count);
    shares[rank] = share_make(reduction, (uint8_t *)view->data + first * reduction->size,
                              last - first);
  }
}

size_t share_slice_count(const struct share *share, size_t slice)
{
  return least(share->slice, share->count - slice * share->slice);
}
