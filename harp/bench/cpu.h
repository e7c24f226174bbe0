/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_CPU_H
#define HARP_BENCH_CPU_H

#include <stdint.h>

/* The whole machine's CPU time so far, from /proc/stat. */
struct cpu_sample {
  double busy_s; /* seconds, all processors together, without idle and stolen time */
  uint64_t at_ns;
};

struct cpu_sample cpu_sample(void);

/* Measures how many processors are busy on average while the run is idle. Sleeps for a while. */
double cpu_idle_baseline(void);

/* Seconds of CPU time beyond the baseline. Negative: unknown, because the interval is too short
 * for the kernel's ticks or the baseline too high. */
double cpu_seconds(const struct cpu_sample *from, const struct cpu_sample *to, double baseline);

enum { MACHINE_SIZE = 40 };

/* The name of this machine: equal for all its containers, and another one on another machine or in
 * a virtual machine. "": unknown. */
void cpu_machine(char name[MACHINE_SIZE]);

#endif
