/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the application has registered: sends may refer to it until the
 * region is gone. Ranges are page-granular and counted; the same range
 * registered twice is one entry. The port is lent each entry once.
 *
 * Thread: any; one mutex, never on the data path.
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
  pthread_mutex_t returning; /* one region at a time goes back; taken before lock */
  struct harp_region *first;
  unsigned count; /* entries */
};

void harp_regions_init(struct harp_regions *regions);
void harp_regions_clear(struct harp_regions *regions);

/* -EINVAL: empty or wraps round; -ENOMEM. */
int harp_region_register(struct harp_engine *engine, void *data, size_t size,
                         struct harp_region **region);

/* Waits, with a bound, until no device reads foreign memory any more, so that
 * the memory may be unmapped. -EINVAL: no such region; -ETIMEDOUT: a device
 * has not let go (the region is gone from the table all the same). */
int harp_region_deregister(struct harp_engine *engine, struct harp_region *region);

#endif
