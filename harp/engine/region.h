/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the application has registered. Sends may refer to it until it is deregistered. A
 * region covers whole pages and is counted: registrations of the same pages share one entry, which
 * the port maps for DMA once.
 *
 * Thread: any; the mutexes are not taken on the data path.
 */
#ifndef HARP_ENGINE_REGION_H
#define HARP_ENGINE_REGION_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct harp_engine;

struct harp_region {
  struct harp_region *next;
  uintptr_t start, end; /* whole pages */
  unsigned count;
};

struct harp_regions {
  pthread_mutex_t lock;
  pthread_mutex_t returning; /* serializes deregistrations; taken before lock */
  struct harp_region *first;
  unsigned count; /* entries */
};

void harp_regions_init(struct harp_regions *regions);
/* Frees all entries, after the port was closed. */
void harp_regions_clear(struct harp_regions *regions);

/* Registers size bytes at data. 0; -EINVAL: the range is empty or wraps around; -ENOMEM. */
int harp_region_register(struct harp_engine *engine, void *data, size_t size,
                         struct harp_region **region);

/* Deregisters a region once. The last deregistration waits, with a limit, until the device no
 * longer reads application memory, so that the memory may be unmapped. 0; -EINVAL: no such region;
 * -ETIMEDOUT: the device has not released the memory, but the region is removed. */
int harp_region_deregister(struct harp_engine *engine, struct harp_region *region);

#endif
