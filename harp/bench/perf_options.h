/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_OPTIONS_H
#define HARP_BENCH_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
  const char *op;
  size_t min_size, max_size; /* bytes */
  unsigned factor;           /* between sizes */
  unsigned iterations, warmup;
  unsigned outstanding; /* 0: the operation's */
  size_t step;          /* bytes of the largest message; 0: the operation's */
  double rate_gbit;     /* offered, Gbit/s; 0: as fast as possible */
  char plugin[PATH_MAX];
  int api; /* 0: the highest that the plugin has */
  bool kernel;
  int nsocks;            /* with kernel; 0: its default */
  const char *kernel_cc; /* with kernel; NULL: its default */
  int rank, ranks;
  const char *host, *port; /* of the rendezvous */
  const char *json;        /* file; "-": standard output; NULL: none */
  bool verified;           /* the verified passes alone: nothing is timed */
  bool hugepages;          /* messages lie in some of 2 MiB */
  int pause_ms;            /* of the application, at each SIGUSR1; 0: the signal is not caught */
  bool inject_wrong;
  int timeout_ms;
  bool debug; /* the plugin's INFO lines too */
  /* Recorded as they are; NULL or 0: null */
  const char *wire, *transport, *direction, *offloads;
  int flows, mtu, pair;
};

/* Fills options from the command line and the launcher's variables. Returns
 * -1 to go on, else the status to exit with (help: 0, wrong usage: 2). */
int options_parse(struct options *options, int argc, char **argv);

#endif
