/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_BENCH_PERF_OPTIONS_H
#define HARP_BENCH_PERF_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIONS_MAX_CHANNELS = 32, OPTIONS_MAX_SIZES = 64 };

/* A size to measure. */
struct sized {
  size_t size; /* bytes */
  unsigned iterations, warmup;
};

struct datatype;

struct options {
  const char *op;
  size_t min_size, max_size; /* bytes */
  unsigned factor;           /* ratio of a size to the previous one */
  unsigned iterations, warmup;
  struct sized sizes[OPTIONS_MAX_SIZES]; /* those of --sizes, or made of the five above */
  unsigned size_count;
  unsigned verified_iterations; /* of a verified pass; 0: those of the timed pass */
  unsigned channels;            /* of a pairwise operation: one for each other rank */
  const struct datatype *datatype;
  unsigned outstanding; /* 0: the operation's default */
  size_t step;          /* bytes of the largest message; 0: the operation's default */
  double rate_gbit;     /* offered load, Gbit/s; 0: as fast as possible */
  bool rests;           /* with rate_gbit: sleep between messages */
  char plugin[PATH_MAX];
  int api; /* 0: the plugin's highest version */
  bool kernel;
  int nsocks;            /* with kernel; 0: the plugin's default */
  const char *kernel_cc; /* with kernel; NULL: the plugin's default */
  int rank, ranks;
  const char *host, *port; /* of the rendezvous */
  bool host_is_node;       /* host is a node's name of Slurm: rank 0 listens on all addresses */
  const char *json;        /* file; "-": standard output; NULL: none */
  bool verified;           /* run only verified passes, time nothing */
  bool hugepages;          /* put messages in 2 MiB hugepages */
  /* the application's pause at each SIGUSR1; 0: no handler for the signal */
  int pause_ms;
  bool inject_wrong;
  int timeout_ms;
  bool debug; /* also print the plugin's INFO lines */
  /* Labels, recorded unchanged; NULL or 0: null */
  const char *wire, *transport, *direction, *offloads;
  int flows, mtu, pair;
};

/* Fills options from the command line and the launcher's variables. Returns -1 to continue, else
 * the exit status (help: 0, wrong usage: 2). */
int options_parse(struct options *options, int argc, char **argv);

#endif
