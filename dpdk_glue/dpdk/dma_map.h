/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application's memory as the device can address it: whole pages, in extents that do not
 * overlap. Each extent counts the registrations that cover it. Its mapping makes it reachable for
 * the device. An extent is split when a later registration covers a part of it. The halves share
 * the mapping, because a mapping cannot be split.
 *
 * One thread at a time maps and revokes. All pollers read without a lock. A lookup that meets a
 * change finds nothing, and the frame is copied. reclaim waits for references that a poller still
 * holds when an extent is removed.
 */
#ifndef HARP_DPDK_GLUE_DPDK_DMA_MAP_H
#define HARP_DPDK_GLUE_DPDK_DMA_MAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_device;

/* Memory that a device can send from. */
enum dma_reach {
  REACH_NOTHING,  /* only DPDK's own memory */
  REACH_PROCESS,  /* all memory that its driver can read with the CPU */
  REACH_MAPPED,   /* memory that is mapped for it, at the same addresses */
  REACH_PHYSICAL, /* pages that do not move, by physical address */
};

/* One mapping of the device; it is mapped and unmapped as a whole. */
struct dma_mapping {
  struct dma_mapping *next; /* in the list of dead mappings */
  uintptr_t start, end;
  uint32_t extents; /* number of extents that use it */
};

struct dma_extent {
  uintptr_t start, end;
  uint64_t iova;               /* the device's address of start */
  uint32_t registrations;      /* registrations that cover it */
  struct dma_mapping *mapping; /* NULL: out of reach, transmit copies the bytes */
};

struct dma_table {
  enum dma_reach reach;
  struct rte_device *device;
  uint32_t budget, used; /* mappings: the limit, and the number in use */
  pthread_mutex_t lock;
  atomic_uint version;        /* odd: a change is in progress */
  struct dma_extent *extents; /* sorted by address */
  atomic_uint count;
  struct dma_mapping *dead; /* revoked mappings that are not yet unmapped */
};

/* budget 0: the usual limit for this kind of device. 0, or -ENOMEM. */
int harp_dma_table_init(struct dma_table *dma, enum dma_reach reach, struct rte_device *device,
                        uint32_t budget);
/* The port was closed and opened again as this device; NULL: the device is gone. */
void harp_dma_table_move(struct dma_table *dma, struct rte_device *device);
void harp_dma_table_close(struct dma_table *dma);

/* Maps whole pages for DMA. 0 (also if the device cannot reach them), or -ENOMEM. */
int harp_dma_map(struct dma_table *dma, uintptr_t start, uintptr_t end);
/* Hides the pages from lookups, except those that another registration covers. */
void harp_dma_revoke(struct dma_table *dma, uintptr_t start, uintptr_t end);
/* Unmaps revoked pages. The caller ensures that nothing refers to them any more. */
void harp_dma_unmap_deferred(struct dma_table *dma);

/* For pollers: finds the extent that holds address, if the device can reach it. *extent is a
 * copy without `registrations`. recent: index of the last extent found, kept by the caller. */
bool harp_dma_find(struct dma_table *dma, uintptr_t address, unsigned *recent,
                   struct dma_extent *extent);

#endif
