/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/region.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "harp/engine/engine.h"

void harp_regions_init(struct harp_regions *regions)
{
  pthread_mutex_init(&regions->lock, NULL);
  pthread_mutex_init(&regions->returning, NULL);
  regions->first = NULL;
  regions->count = 0;
}

void harp_regions_clear(struct harp_regions *regions)
{
  while (regions->first) {
    struct harp_region *next = regions->first->next;
    free(regions->first);
    regions->first = next;
  }
  pthread_mutex_destroy(&regions->lock);
  pthread_mutex_destroy(&regions->returning);
}

static struct harp_region *find(struct harp_regions *regions, uintptr_t start, uintptr_t end)
{
  struct harp_region *region = regions->first;
  while (region && (region->start != start || region->end != end)) {
    region = region->next;
  }
  return region;
}

/* Adds an entry, mapped for DMA if the port supports that. Called with the lock. */
static int add(struct harp_engine *engine, uintptr_t start, uintptr_t end, struct harp_region **out)
{
  struct harp_regions *regions = &engine->regions;
  const struct harp_port_ops *ops = engine->port->ops;
  struct harp_region *region = calloc(1, sizeof *region);
  int result = region ? 0 : -ENOMEM;
  if (result == 0 && ops->dma_map) {
    result = ops->dma_map(engine->port, start, end);
  }
  if (result != 0) {
    free(region);
    return result;
  }
  region->start = start;
  region->end = end;
  region->next = regions->first;
  regions->first = region;
  regions->count++;
  *out = region;
  return 0;
}

int harp_region_register(struct harp_engine *engine, void *data, size_t size,
                         struct harp_region **out)
{
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t start = (uintptr_t)data & ~(page - 1);
  uintptr_t end = ((uintptr_t)data + size + page - 1) & ~(page - 1);
  if (size == 0 || end <= start) {
    return -EINVAL;
  }
  struct harp_regions *regions = &engine->regions;
  pthread_mutex_lock(&regions->lock);
  struct harp_region *region = find(regions, start, end);
  int result = region ? 0 : add(engine, start, end, &region);
  if (result == 0) {
    region->count++;
    *out = region;
  }
  pthread_mutex_unlock(&regions->lock);
  return result;
}

static void reclaim(struct harp_instance *instance, void *argument)
{
  int *result = argument;
  int one = harp_instance_reclaim(instance);
  *result = one ? one : *result;
}

/* Drops a reference. The last one removes the entry from the table and sets *dead. */
static int forget(struct harp_regions *regions, struct harp_region *region,
                  struct harp_region **dead)
{
  struct harp_region **link = &regions->first;
  while (*link && *link != region) {
    link = &(*link)->next;
  }
  if (!*link) {
    return -EINVAL;
  }
  if (--region->count == 0) {
    *link = region->next;
    regions->count--;
    *dead = region;
  }
  return 0;
}

static int reclaim_all(struct harp_engine *engine)
{
  int result = 0;
  for (unsigned i = 0; i < engine->instance_count; i++) {
    int called = harp_instance_call(engine->instances[i], reclaim, &result, HARP_INSTANCE_CALL_MS);
    result = called ? called : result;
  }
  return result;
}

/* Ends DMA from the region: stops new references, waits for the old ones, then unmaps it. */
static int give_back(struct harp_engine *engine, const struct harp_region *region)
{
  struct harp_regions *regions = &engine->regions;
  const struct harp_port_ops *ops = engine->port->ops;
  pthread_mutex_lock(&regions->returning);
  if (ops->dma_revoke) {
    pthread_mutex_lock(&regions->lock);
    ops->dma_revoke(engine->port, region->start, region->end);
    pthread_mutex_unlock(&regions->lock);
  }
  int result = reclaim_all(engine);
  if (result == 0 && ops->dma_unmap_deferred) {
    pthread_mutex_lock(&regions->lock);
    ops->dma_unmap_deferred(engine->port);
    pthread_mutex_unlock(&regions->lock);
  }
  pthread_mutex_unlock(&regions->returning);
  return result;
}

int harp_region_deregister(struct harp_engine *engine, struct harp_region *region)
{
  struct harp_region *dead = NULL;
  pthread_mutex_lock(&engine->regions.lock);
  int result = forget(&engine->regions, region, &dead);
  pthread_mutex_unlock(&engine->regions.lock);
  if (dead) {
    result = give_back(engine, dead);
    free(dead);
  }
  return result;
}
