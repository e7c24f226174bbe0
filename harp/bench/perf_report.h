/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 says: a table as nccl-tests print it, and records for programs. */
#ifndef HARP_BENCH_REPORT_H
#define HARP_BENCH_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "harp/bench/netapi.h"
#include "harp/bench/operation.h"
#include "harp/bench/perf_options.h"

struct measurement {
  size_t size; /* bytes */
  unsigned outstanding;
  double time_us;        /* of one iteration; negative: none was timed */
  double cpu_s_per_gb;   /* negative: unknown */
  double p50_us, p99_us; /* of round trips; negative: none were timed */
  uint64_t wrong;        /* elements, all ranks */
};

struct report {
  const struct options *options;
  const struct operation *operation;
  const struct netapi *api;
  const char *device;
  int flows;          /* per link; 0: not known */
  FILE *table, *json; /* json NULL: not wanted */
  unsigned records;
};

/* 0; -1: the file cannot be written, said on stderr. */
int report_open(struct report *report);
void report_add(struct report *report, const struct measurement *measurement);
/* 0; -1: writing failed, said on stderr. */
int report_close(struct report *report);

#endif
