/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this process stands on its host: its number among the job's local
 * ranks, as the launcher tells it, and the GPU that it will use.
 *
 * Thread: any; reads the environment and /proc only.
 */
#ifndef HARP_ENGINE_PLACE_H
#define HARP_ENGINE_PLACE_H

struct harp_place {
  int local_rank; /* -1: unknown */
  int local_size; /* ranks on this host; 0: unknown */
  char gpu[16];   /* PCI id as in sysfs, lower case; "": unknown */
};

/* root: "", or in tests the folder below which /proc/driver/nvidia is looked for. */
void harp_place_find(struct harp_place *place, const char *root);

#endif
