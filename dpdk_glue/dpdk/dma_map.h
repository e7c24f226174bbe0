/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the application lends, as the device can address it: whole pages,
 * in extents that do not overlap, each counted by the loans that cover it. What
 * made an extent reachable is its mapping; an extent that a later loan covers in
 * part is split, and the halves share the mapping, which cannot be.
 *
 * Written by whoever lends and revokes (one at a time), read by all pollers
 * without a lock: a lookup that met a change finds nothing, and the frame is
 * copied. What a poller still holds when an extent goes, reclaim waits for.
 */
#ifndef HARP_DPDK_GLUE_DPDK_DMA_MAP_H
#define HARP_DPDK_GLUE_DPDK_DMA_MAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_device;

/* From where a device reads what it sends. */
enum dma_reach {
  REACH_NOTHING,  /* DPDK's own memory only */
  REACH_PROCESS,  /* whatever its driver can read with the CPU */
  REACH_MAPPED,   /* what is mapped for it, at the same addresses */
  REACH_PHYSICAL, /* pages that stay where they are, by physical address */
};

/* Made and taken back as a whole. */
struct dma_mapping {
  struct dma_mapping *next; /* among the dead */
  uintptr_t start, end;
  uint32_t extents; /* that it serves */
};

struct dma_extent {
  uintptr_t start, end;
  uint64_t iova; /* where start is for the device */
  uint32_t loans;
  struct dma_mapping *mapping; /* NULL: out of reach, its bytes are copied */
};

struct dma_table {
  enum dma_reach reach;
  struct rte_device *device;
  uint32_t budget, used; /* mappings: most, and those that there are */
  pthread_mutex_t lock;
  atomic_uint version;        /* odd: being changed */
  struct dma_extent *extents; /* by address */
  atomic_uint count;
  struct dma_mapping *dead; /* revoked, not taken back yet */
};

/* budget 0: as many as such a device takes. -ENOMEM, or 0. */
int harp_dma_table_init(struct dma_table *dma, enum dma_reach reach, struct rte_device *device,
                        uint32_t budget);
/* The device was taken away and is there again as this one; NULL: it is not. */
void harp_dma_table_move(struct dma_table *dma, struct rte_device *device);
void harp_dma_table_close(struct dma_table *dma);

/* Whole pages. 0 (also where the device cannot reach them), or -ENOMEM. */
int harp_dma_map(struct dma_table *dma, uintptr_t start, uintptr_t end);
/* From here on no lookup finds the pages that no other loan reaches into. */
void harp_dma_revoke(struct dma_table *dma, uintptr_t start, uintptr_t end);
/* Nothing refers to revoked pages any more: unmaps them. */
void harp_dma_unmap_deferred(struct dma_table *dma);

/* A poller: the extent that holds address, if the device can reach it; *extent
 * is a copy, but for the loans. recent: where the last one was found, the caller's to keep. */
bool harp_dma_find(struct dma_table *dma, uintptr_t address, unsigned *recent,
                   struct dma_extent *extent);

#endif
