/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which threads poll an instance: its worker alone, or NCCL's threads inside test() as well.
 *
 * Thread: any; reads the environment, /proc and the cgroup file systems only.
 */
#ifndef HARP_ENGINE_POLL_THREADS_H
#define HARP_ENGINE_POLL_THREADS_H

#include <stdbool.h>

#include "harp/engine/config.h"

struct harp_poll_threads {
  bool callers;    /* threads in test() poll, and the worker sleeps meanwhile */
  unsigned cpus;   /* CPUs that the process may use */
  unsigned wanted; /* CPUs that all local ranks need for spinning workers and callers */
};

/* Follows the key `threads`. auto: callers poll if there are fewer CPUs than wanted. root: "", or
 * in tests a folder that contains /proc and /sys. */
void harp_poll_threads_choose(struct harp_poll_threads *threads, const struct harp_config *config,
                              const char *root);

#endif
