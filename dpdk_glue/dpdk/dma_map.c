/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/dpdk/dma_map.h"
#include "dpdk_glue/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <rte_memory.h>
#include <rte_vfio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  EXTENTS = 1 << 18,   /* table size in address space; memory is allocated when it is touched */
  MAPPINGS = 200,      /* VFIO allows about 256, and DPDK needs some itself */
  HUGE_PAGE = 2 << 20, /* bytes; the smallest page that the kernel does not move */
  KPF_HUGE = 17,       /* Linux, admin-guide/mm/pagemap: a hugetlbfs page */
};

int harp_dma_table_init(struct dma_table *dma, enum dma_reach reach, struct rte_device *device,
                        uint32_t budget)
{
  memset(dma, 0, sizeof(*dma));
  dma->reach = reach;
  dma->device = device;
  dma->budget = budget ? budget : reach == REACH_MAPPED ? MAPPINGS : EXTENTS;
  void *table = mmap(NULL, EXTENTS * sizeof(struct dma_extent), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    return -ENOMEM;
  }
  dma->extents = table;
  pthread_mutex_init(&dma->lock, NULL);
  return 0;
}

void harp_dma_table_move(struct dma_table *dma, struct rte_device *device)
{
  pthread_mutex_lock(&dma->lock);
  dma->device = device;
  pthread_mutex_unlock(&dma->lock);
}

void harp_dma_table_close(struct dma_table *dma)
{
  if (!dma->extents) {
    return;
  }
  while (atomic_load_explicit(&dma->count, memory_order_relaxed)) {
    harp_dma_revoke(dma, 0, UINTPTR_MAX);
  }
  harp_dma_unmap_deferred(dma);
  munmap(dma->extents, EXTENTS * sizeof(struct dma_extent));
  pthread_mutex_destroy(&dma->lock);
  dma->extents = NULL;
}

/* --- The device's reach --- */

/* Returns true if the page at a physical address is a hugetlbfs page, which the kernel neither
 * moves nor swaps. */
static bool stays(uint64_t physical)
{
  uint64_t flags = 0, page = physical / (uint64_t)sysconf(_SC_PAGESIZE);
  int fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
  bool read = fd >= 0 && pread(fd, &flags, sizeof(flags), (off_t)(page * 8)) == sizeof(flags);
  harp_descriptor_close(fd);
  return read && (flags >> KPF_HUGE & 1);
}

/* Shortens the extent to its longest first part of one kind: one contiguous physical range of fixed
 * pages, or no fixed page at all. Returns true for the first kind. */
static bool locate(struct dma_extent *extent)
{
  uintptr_t at = extent->start;
  uint64_t first = rte_mem_virt2phy((const void *)at);
  bool run = first != RTE_BAD_IOVA && stays(first);
  extent->iova = first;
  for (;;) {
    at = (at & ~(uintptr_t)(HUGE_PAGE - 1)) + HUGE_PAGE;
    if (at >= extent->end) {
      return run;
    }
    uint64_t next = rte_mem_virt2phy((const void *)at);
    bool also = next != RTE_BAD_IOVA && stays(next);
    if (also != run || (run && next != first + (at - extent->start))) {
      extent->end = at;
      return run;
    }
  }
}

static bool map(struct dma_table *dma, struct dma_extent *extent)
{
  switch (dma->reach) {
  case REACH_PROCESS: return true;
  /* Calls VFIO directly, because rte_dev_dma_map accepts only memory that DPDK knows. The call
   * also fails for pages that an older mapping still covers, and if the process can pin no more
   * memory (no CAP_IPC_LOCK and a low RLIMIT_MEMLOCK). */
  case REACH_MAPPED:
    return dma->device && dma->used < dma->budget &&
           rte_vfio_container_dma_map(RTE_VFIO_DEFAULT_CONTAINER_FD, extent->start, extent->start,
                                      extent->end - extent->start) == 0;
  case REACH_PHYSICAL: return locate(extent);
  case REACH_NOTHING: break;
  }
  return false;
}

/* Maps the first part of [start, end) if the device can reach it. Returns the part as an extent,
 * which may end before end. */
static struct dma_extent reach(struct dma_table *dma, uintptr_t start, uintptr_t end)
{
  struct dma_extent extent = {.start = start, .end = end, .iova = start, .registrations = 1};
  struct dma_mapping *mapping = malloc(sizeof(*mapping));
  if (!mapping || !map(dma, &extent) || dma->used >= dma->budget) {
    free(mapping);
    return extent;
  }
  *mapping = (struct dma_mapping){.start = start, .end = extent.end, .extents = 1};
  extent.mapping = mapping;
  dma->used++;
  return extent;
}

/* --- The table --- */

/* Pollers read during the write and detect it afterwards, so each word is stored atomically.
 * Pollers do not read `registrations`. */
static void put(struct dma_extent *place, const struct dma_extent *extent)
{
  __atomic_store_n(&place->start, extent->start, __ATOMIC_RELAXED);
  __atomic_store_n(&place->end, extent->end, __ATOMIC_RELAXED);
  __atomic_store_n(&place->iova, extent->iova, __ATOMIC_RELAXED);
  __atomic_store_n(&place->mapping, extent->mapping, __ATOMIC_RELAXED);
  place->registrations = extent->registrations;
}

static struct dma_extent get(const struct dma_extent *place)
{
  return (struct dma_extent){
      .start = __atomic_load_n(&place->start, __ATOMIC_RELAXED),
      .end = __atomic_load_n(&place->end, __ATOMIC_RELAXED),
      .iova = __atomic_load_n(&place->iova, __ATOMIC_RELAXED),
      .mapping = __atomic_load_n(&place->mapping, __ATOMIC_RELAXED),
  };
}

static void begin_change(struct dma_table *dma)
{
  atomic_fetch_add_explicit(&dma->version, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
}

static void end_change(struct dma_table *dma)
{
  atomic_fetch_add_explicit(&dma->version, 1, memory_order_release);
}

/* Returns the index of the first extent that ends after address. */
static unsigned first_behind(const struct dma_table *dma, uintptr_t address, unsigned count)
{
  unsigned low = 0, high = count;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (__atomic_load_n(&dma->extents[middle].end, __ATOMIC_RELAXED) > address) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

static void insert(struct dma_table *dma, unsigned at, const struct dma_extent *extent)
{
  unsigned count = atomic_load_explicit(&dma->count, memory_order_relaxed);
  begin_change(dma);
  for (unsigned i = count; i > at; i--) {
    put(&dma->extents[i], &dma->extents[i - 1]);
  }
  put(&dma->extents[at], extent);
  atomic_store_explicit(&dma->count, count + 1, memory_order_relaxed);
  end_change(dma);
}

static void remove_at(struct dma_table *dma, unsigned at)
{
  unsigned count = atomic_load_explicit(&dma->count, memory_order_relaxed);
  struct dma_mapping *mapping = dma->extents[at].mapping;
  begin_change(dma);
  for (unsigned i = at; i + 1 < count; i++) {
    put(&dma->extents[i], &dma->extents[i + 1]);
  }
  atomic_store_explicit(&dma->count, count - 1, memory_order_relaxed);
  end_change(dma);
  if (mapping && --mapping->extents == 0) {
    mapping->next = dma->dead;
    dma->dead = mapping;
  }
}

/* Makes address a border between extents, if it lies within one. */
static void split(struct dma_table *dma, uintptr_t address)
{
  unsigned count = atomic_load_explicit(&dma->count, memory_order_relaxed);
  unsigned at = first_behind(dma, address, count);
  if (at == count || dma->extents[at].start >= address) {
    return;
  }
  struct dma_extent second = dma->extents[at];
  second.iova += address - second.start;
  second.start = address;
  if (second.mapping) {
    second.mapping->extents++;
  }
  begin_change(dma);
  __atomic_store_n(&dma->extents[at].end, address, __ATOMIC_RELAXED);
  end_change(dma);
  insert(dma, at + 1, &second);
}

/* Inserts extents for [start, end), which no extent covers yet. The first one gets the index `at`.
 * Returns the index after the last one. */
static unsigned fill(struct dma_table *dma, unsigned at, uintptr_t start, uintptr_t end)
{
  while (start < end) {
    struct dma_extent extent = reach(dma, start, end);
    insert(dma, at++, &extent);
    start = extent.end;
  }
  return at;
}

/* Upper bound of the extents that a registration can add: one in each gap, one per huge page,
 * and two where its ends split others. */
static bool has_room(const struct dma_table *dma, uintptr_t start, uintptr_t end)
{
  unsigned count = atomic_load_explicit(&dma->count, memory_order_relaxed);
  uintptr_t pieces = (end - start) / HUGE_PAGE + 2;
  return 2 * (uintptr_t)count + 3 + pieces < EXTENTS;
}

int harp_dma_map(struct dma_table *dma, uintptr_t start, uintptr_t end)
{
  pthread_mutex_lock(&dma->lock);
  if (!has_room(dma, start, end)) {
    pthread_mutex_unlock(&dma->lock);
    return -ENOMEM;
  }
  split(dma, start);
  split(dma, end);
  unsigned at = first_behind(dma, start, atomic_load_explicit(&dma->count, memory_order_relaxed));
  while (at < atomic_load_explicit(&dma->count, memory_order_relaxed) &&
         dma->extents[at].start < end) {
    at = fill(dma, at, start, dma->extents[at].start);
    dma->extents[at].registrations++;
    start = dma->extents[at].end;
    at++;
  }
  fill(dma, at, start, end);
  pthread_mutex_unlock(&dma->lock);
  return 0;
}

/* Extents that count a registration cover all its pages, and its ends are borders between extents,
 * as long as it exists. */
void harp_dma_revoke(struct dma_table *dma, uintptr_t start, uintptr_t end)
{
  pthread_mutex_lock(&dma->lock);
  unsigned at = first_behind(dma, start, atomic_load_explicit(&dma->count, memory_order_relaxed));
  while (at < atomic_load_explicit(&dma->count, memory_order_relaxed) &&
         dma->extents[at].start < end) {
    if (--dma->extents[at].registrations == 0) {
      remove_at(dma, at);
    } else {
      at++;
    }
  }
  pthread_mutex_unlock(&dma->lock);
}

void harp_dma_unmap_deferred(struct dma_table *dma)
{
  pthread_mutex_lock(&dma->lock);
  while (dma->dead) {
    struct dma_mapping *mapping = dma->dead;
    dma->dead = mapping->next;
    if (dma->reach == REACH_MAPPED && dma->device) {
      rte_vfio_container_dma_unmap(RTE_VFIO_DEFAULT_CONTAINER_FD, mapping->start, mapping->start,
                                   mapping->end - mapping->start);
    }
    free(mapping);
    dma->used--;
  }
  pthread_mutex_unlock(&dma->lock);
}

static bool holds(const struct dma_extent *extent, uintptr_t address)
{
  return extent->start <= address && address < extent->end;
}

bool harp_dma_find(struct dma_table *dma, uintptr_t address, unsigned *recent,
                   struct dma_extent *extent)
{
  unsigned version = atomic_load_explicit(&dma->version, memory_order_acquire);
  unsigned count = atomic_load_explicit(&dma->count, memory_order_relaxed);
  unsigned at = *recent;
  if (version & 1) {
    return false;
  }
  if (at < count) {
    *extent = get(&dma->extents[at]);
  }
  if (at >= count || !holds(extent, address)) {
    at = first_behind(dma, address, count);
    if (at >= count) {
      return false;
    }
    *extent = get(&dma->extents[at]);
  }
  atomic_thread_fence(memory_order_acquire);
  if (atomic_load_explicit(&dma->version, memory_order_relaxed) != version) {
    return false;
  }
  *recent = at;
  return extent->mapping && holds(extent, address);
}
