/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's output: a table in the format of nccl-tests, and JSON records. */
#ifndef HARP_BENCH_PERF_REPORT_H
#define HARP_BENCH_PERF_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "harp/bench/netapi.h"
#include "harp/bench/operation.h"
#include "harp/bench/perf_options.h"

struct measurement {
  size_t size; /* bytes */
  unsigned outstanding;
  double time_us;        /* of one iteration; negative: not timed */
  double cpu_s_per_gb;   /* negative: unknown */
  double p50_us, p99_us; /* of round trips; negative: not timed */
  uint64_t wrong;        /* elements, over all ranks */
};

struct report {
  const struct options *options;
  const struct operation *operation;
  const struct netapi *api;
  const char *device;
  int flows;              /* per link; 0: unknown */
  int sockets;            /* per link of the kernel plugin; 0: unknown */
  const char *congestion; /* of the kernel plugin; NULL: unknown */
  FILE *table, *json;     /* json NULL: not requested */
  unsigned records;
};

/* 0; -1: the file cannot be written, and the error is printed. */
int report_open(struct report *report);
void report_add(struct report *report, const struct measurement *measurement);
/* 0; -1: a write failed, and the error is printed. */
int report_close(struct report *report);

#endif
