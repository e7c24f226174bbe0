/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/cpu.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "harp/bench/clock.h"

enum { BASELINE_MS = 400, SHORTEST_MS = 200 };

struct cpu_sample cpu_sample(void)
{
  unsigned long long user = 0, nice = 0, system = 0, idle, iowait, irq = 0, softirq = 0;
  struct cpu_sample sample = {.at_ns = clock_ns()};
  FILE *file = fopen("/proc/stat", "re");
  if (file && fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
                     &iowait, &irq, &softirq) == 7) {
    sample.busy_s = (double)(user + nice + system + irq + softirq) / (double)sysconf(_SC_CLK_TCK);
  }
  if (file) {
    fclose(file);
  }
  return sample;
}

static double elapsed_s(const struct cpu_sample *from, const struct cpu_sample *to)
{
  return (double)(to->at_ns - from->at_ns) / 1e9;
}

double cpu_idle_baseline(void)
{
  struct timespec pause = {.tv_nsec = BASELINE_MS * 1000000l};
  struct cpu_sample before = cpu_sample();
  nanosleep(&pause, NULL);
  struct cpu_sample after = cpu_sample();
  return (after.busy_s - before.busy_s) / elapsed_s(&before, &after);
}

double cpu_seconds(const struct cpu_sample *from, const struct cpu_sample *to, double baseline)
{
  double elapsed = elapsed_s(from, to);
  if (elapsed * 1e3 < SHORTEST_MS) {
    return -1;
  }
  return to->busy_s - from->busy_s - baseline * elapsed;
}

void cpu_machine(char name[MACHINE_SIZE])
{
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (!file || !fgets(name, MACHINE_SIZE, file)) {
    name[0] = '\0';
  }
  if (file) {
    fclose(file);
  }
}
