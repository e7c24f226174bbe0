/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_PERCENTILE_H
#define HARP_BENCH_PERCENTILE_H

#include <stddef.h>

/* The median of count values in ascending order; count is at least 1. */
static inline double median_of(const double *values, size_t count)
{
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* The least of the values that 99 % of all do not exceed. */
static inline double percentile_99_of(const double *values, size_t count)
{
  return values[(count * 99 + 99) / 100 - 1];
}

#endif
