/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/folds.h"

#include <stdbool.h>

extern const struct folds folds_plain;

#ifdef __x86_64__
extern const struct folds folds_avx2, folds_avx512;

static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }

static bool has_avx512(void)
{
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

static bool always(void) { return true; }

const struct folds *folds_choose(unsigned index)
{
  static const struct {
    const struct folds *folds;
    bool (*runs)(void);
  } sets[] = {
#ifdef __x86_64__
      {&folds_avx512, has_avx512},
      {&folds_avx2, has_avx2},
#endif
      {&folds_plain, always},
  };
  for (unsigned i = 0; i < sizeof sets / sizeof sets[0]; i++) {
    if (sets[i].runs() && index-- == 0) {
      return sets[i].folds;
    }
  }
  return NULL;
}
