/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_DPDK_GLUE_CLOCK_H
#define HARP_DPDK_GLUE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, milliseconds. */
static inline int64_t harp_monotonic_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

#endif
