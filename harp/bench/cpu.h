/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_CPU_H
#define HARP_BENCH_CPU_H

#include <stdint.h>

/* The whole machine's time so far, from /proc/stat. */
struct cpu_sample {
  double busy_s; /* not idle, all processors together; time stolen by other guests not counted */
  uint64_t at_ns;
};

struct cpu_sample cpu_sample(void);

/* Processors that are busy on average while the run waits: sleeps for a while. */
double cpu_idle_baseline(void);

/* Seconds that the machine worked beyond the baseline; negative: they cannot be
 * told, as the stretch is too short for the kernel's ticks or the baseline too high. */
double cpu_seconds(const struct cpu_sample *from, const struct cpu_sample *to, double baseline);

#endif
