/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process's job, its rank there and on its host, from the launcher's variables, and the GPU
 * that it will use.
 *
 * Thread: any; reads the environment and /proc only.
 */
#ifndef HARP_ENGINE_RANK_TOPOLOGY_H
#define HARP_ENGINE_RANK_TOPOLOGY_H

#include "harp/engine/config.h"

struct harp_rank_topology {
  int rank;                   /* in the job; -1: unknown */
  int world_size;             /* ranks of the job; 0: unknown */
  int local_rank;             /* -1: unknown */
  int local_size;             /* ranks on this host; 0: unknown */
  char gpu[HARP_PCI_ID_SIZE]; /* PCI id as in sysfs, lower case; "": unknown */
  char job[124];              /* the scheduler's or launcher's name of the job; "": unknown */
};

/* root: "", or in tests a folder that contains /proc/driver/nvidia. */
void harp_rank_topology_find(struct harp_rank_topology *topology, const char *root);

#endif
