/* SPDX-License-Identifier: Apache-2.0 */
/* What harp.light calls of the library. */
#include "harp/collectives/collectives.h"
#include "harp/collectives/folds.h"

size_t harp_light_candidates(float *rest, float *gradient, size_t count, float bound,
                             int32_t *indices, float *values, size_t room)
{
  return folds_choose(0)->candidates(rest, gradient, count, bound, indices, values, room);
}
