/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many instances a NIC has, and which threads poll them: their workers alone, or NCCL's threads
 * inside test() as well.
 *
 * Thread: any; reads the environment, /proc, the cgroup file systems and the process's limits only,
 * and looks for an agent.
 */
#ifndef HARP_ENGINE_POLL_THREADS_H
#define HARP_ENGINE_POLL_THREADS_H

#include <stdbool.h>

#include "harp/engine/config.h"

/* The CPUs that the process may use: those of its affinity mask, or fewer by the quota of its
 * cgroups. root: "", or in tests a folder that contains /proc and /sys. */
unsigned harp_usable_cpus(const char *root);

/* The number of instances of a NIC: the key `instances`, else 1, 2 or 4. nics: the NICs of the
 * process. cpus: those that it may use. root: as above. */
unsigned harp_instances_choose(const struct harp_config *config, unsigned nics, unsigned cpus,
                               const char *root);

/* The local ports that a rank takes with this number of instances, at most as a rule. root: as
 * above. */
uint64_t harp_instances_ports(unsigned instances, const char *root);

struct harp_poll_threads {
  bool callers;    /* threads in test() poll, and the worker sleeps meanwhile */
  unsigned cpus;   /* CPUs that the process may use */
  unsigned wanted; /* CPUs that all local ranks need for spinning workers and callers */
};

/* Follows the key `threads`. auto: callers poll if there are fewer CPUs than wanted. The
 * configuration has a number of instances. root: as above. */
void harp_poll_threads_choose(struct harp_poll_threads *threads, const struct harp_config *config,
                              const char *root);

#endif
