/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/dpdk/dma_map.h"

#include <errno.h>
#include <fcntl.h>
#include <rte_memory.h>
#include <rte_vfio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  EXTENTS = 1 << 18,        /* address space of the table; pages come when they are touched */
  MAPPINGS = 200,           /* VFIO takes about 256, and DPDK has some itself */
  HUGE_PAGE = 2 << 20,      /* the smallest page that the kernel does not move */
  KPF_HUGE = 17,            /* Linux's admin-guide/mm/pagemap: a page of hugetlbfs */
};

int harp_ethdev_lent_init(struct ethdev_lent *lent, enum ethdev_reach reach,
                          struct rte_device *device, uint32_t budget) {
  memset(lent, 0, sizeof(*lent));
  lent->reach = reach;
  lent->device = device;
  lent->budget = budget ? budget : reach == REACH_MAPPED ? MAPPINGS : EXTENTS;
  void *table = mmap(NULL, EXTENTS * sizeof(struct ethdev_extent), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED)
    return -ENOMEM;
  lent->extents = table;
  pthread_mutex_init(&lent->lock, NULL);
  return 0;
}

void harp_ethdev_lent_move(struct ethdev_lent *lent, struct rte_device *device) {
  pthread_mutex_lock(&lent->lock);
  lent->device = device;
  pthread_mutex_unlock(&lent->lock);
}

void harp_ethdev_lent_close(struct ethdev_lent *lent) {
  if (!lent->extents)
    return;
  while (atomic_load_explicit(&lent->count, memory_order_relaxed))
    harp_ethdev_revoke(lent, 0, UINTPTR_MAX);
  harp_ethdev_settle(lent);
  munmap(lent->extents, EXTENTS * sizeof(struct ethdev_extent));
  pthread_mutex_destroy(&lent->lock);
  lent->extents = NULL;
}

/* --- What the device can reach --- */

/* Whether the page at a physical address is the kernel's to move or swap. */
static bool stays(uint64_t physical) {
  uint64_t flags = 0, page = physical / (uint64_t)sysconf(_SC_PAGESIZE);
  int fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
  bool read = fd >= 0 && pread(fd, &flags, sizeof(flags), (off_t)(page * 8)) == sizeof(flags);
  if (fd >= 0)
    close(fd);
  return read && (flags >> KPF_HUGE & 1);
}

/* Cuts the extent behind the longest first part that is one physical run, or
 * that is none; whether it is one. */
static bool locate(struct ethdev_extent *extent) {
  uintptr_t at = extent->start;
  uint64_t first = rte_mem_virt2phy((const void *)at);
  bool run = first != RTE_BAD_IOVA && stays(first);
  extent->iova = first;
  for (;;) {
    at = (at & ~(uintptr_t)(HUGE_PAGE - 1)) + HUGE_PAGE;
    if (at >= extent->end)
      return run;
    uint64_t next = rte_mem_virt2phy((const void *)at);
    bool also = next != RTE_BAD_IOVA && stays(next);
    if (also != run || (run && next != first + (at - extent->start))) {
      extent->end = at;
      return run;
    }
  }
}

static bool map(struct ethdev_lent *lent, struct ethdev_extent *extent) {
  switch (lent->reach) {
    case REACH_PROCESS:
      return true;
    /* By VFIO itself: rte_dev_dma_map takes only memory that DPDK knows. Fails also
     * for pages that an older mapping holds still, and where neither CAP_IPC_LOCK
     * nor the limit on locked memory lets them be pinned. */
    case REACH_MAPPED:
      return lent->device && lent->used < lent->budget &&
             rte_vfio_container_dma_map(RTE_VFIO_DEFAULT_CONTAINER_FD, extent->start,
                                        extent->start, extent->end - extent->start) == 0;
    case REACH_PHYSICAL:
      return locate(extent);
    case REACH_NOTHING:
      break;
  }
  return false;
}

/* Decides about the first part of [start, end), and says how long that is. */
static struct ethdev_extent reach(struct ethdev_lent *lent, uintptr_t start, uintptr_t end) {
  struct ethdev_extent extent = {.start = start, .end = end, .iova = start, .loans = 1};
  struct ethdev_mapping *mapping = malloc(sizeof(*mapping));
  if (!mapping || !map(lent, &extent) || lent->used >= lent->budget) {
    free(mapping);
    return extent;
  }
  *mapping = (struct ethdev_mapping){.start = start, .end = extent.end, .extents = 1};
  extent.mapping = mapping;
  lent->used++;
  return extent;
}

/* --- The table --- */

/* Pollers read while it is written, and find out afterwards: word by word, each whole. Loans are no
 * business of theirs. */
static void put(struct ethdev_extent *place, const struct ethdev_extent *extent) {
  __atomic_store_n(&place->start, extent->start, __ATOMIC_RELAXED);
  __atomic_store_n(&place->end, extent->end, __ATOMIC_RELAXED);
  __atomic_store_n(&place->iova, extent->iova, __ATOMIC_RELAXED);
  __atomic_store_n(&place->mapping, extent->mapping, __ATOMIC_RELAXED);
  place->loans = extent->loans;
}

static struct ethdev_extent get(const struct ethdev_extent *place) {
  return (struct ethdev_extent){
      .start = __atomic_load_n(&place->start, __ATOMIC_RELAXED),
      .end = __atomic_load_n(&place->end, __ATOMIC_RELAXED),
      .iova = __atomic_load_n(&place->iova, __ATOMIC_RELAXED),
      .mapping = __atomic_load_n(&place->mapping, __ATOMIC_RELAXED),
  };
}

static void begin_change(struct ethdev_lent *lent) {
  atomic_fetch_add_explicit(&lent->version, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
}

static void end_change(struct ethdev_lent *lent) {
  atomic_fetch_add_explicit(&lent->version, 1, memory_order_release);
}

/* The first extent that ends behind address. */
static unsigned first_behind(const struct ethdev_lent *lent, uintptr_t address, unsigned count) {
  unsigned low = 0, high = count;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (__atomic_load_n(&lent->extents[middle].end, __ATOMIC_RELAXED) > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static void insert(struct ethdev_lent *lent, unsigned at, const struct ethdev_extent *extent) {
  unsigned count = atomic_load_explicit(&lent->count, memory_order_relaxed);
  begin_change(lent);
  for (unsigned i = count; i > at; i--)
    put(&lent->extents[i], &lent->extents[i - 1]);
  put(&lent->extents[at], extent);
  atomic_store_explicit(&lent->count, count + 1, memory_order_relaxed);
  end_change(lent);
}

static void remove_at(struct ethdev_lent *lent, unsigned at) {
  unsigned count = atomic_load_explicit(&lent->count, memory_order_relaxed);
  struct ethdev_mapping *mapping = lent->extents[at].mapping;
  begin_change(lent);
  for (unsigned i = at; i + 1 < count; i++)
    put(&lent->extents[i], &lent->extents[i + 1]);
  atomic_store_explicit(&lent->count, count - 1, memory_order_relaxed);
  end_change(lent);
  if (mapping && --mapping->extents == 0) {
    mapping->next = lent->dead;
    lent->dead = mapping;
  }
}

/* Makes address the border of extents, if it lies within one. */
static void split(struct ethdev_lent *lent, uintptr_t address) {
  unsigned count = atomic_load_explicit(&lent->count, memory_order_relaxed);
  unsigned at = first_behind(lent, address, count);
  if (at == count || lent->extents[at].start >= address)
    return;
  struct ethdev_extent second = lent->extents[at];
  second.iova += address - second.start;
  second.start = address;
  if (second.mapping)
    second.mapping->extents++;
  begin_change(lent);
  __atomic_store_n(&lent->extents[at].end, address, __ATOMIC_RELAXED);
  end_change(lent);
  insert(lent, at + 1, &second);
}

/* Extents for the pages from start to end, which are in none, from position at
 * on; the position behind them. */
static unsigned fill(struct ethdev_lent *lent, unsigned at, uintptr_t start, uintptr_t end) {
  while (start < end) {
    struct ethdev_extent extent = reach(lent, start, end);
    insert(lent, at++, &extent);
    start = extent.end;
  }
  return at;
}

/* How many more extents a loan can come to: one between each two that there
 * are, or one a huge page, and two where its ends split others. */
static bool has_room(const struct ethdev_lent *lent, uintptr_t start, uintptr_t end) {
  unsigned count = atomic_load_explicit(&lent->count, memory_order_relaxed);
  uintptr_t pieces = (end - start) / HUGE_PAGE + 2;
  return 2 * (uintptr_t)count + 3 + pieces < EXTENTS;
}

int harp_ethdev_lend(struct ethdev_lent *lent, uintptr_t start, uintptr_t end) {
  pthread_mutex_lock(&lent->lock);
  if (!has_room(lent, start, end)) {
    pthread_mutex_unlock(&lent->lock);
    return -ENOMEM;
  }
  split(lent, start);
  split(lent, end);
  unsigned at =
      first_behind(lent, start, atomic_load_explicit(&lent->count, memory_order_relaxed));
  while (at < atomic_load_explicit(&lent->count, memory_order_relaxed) &&
         lent->extents[at].start < end) {
    at = fill(lent, at, start, lent->extents[at].start);
    lent->extents[at].loans++;
    start = lent->extents[at].end;
    at++;
  }
  fill(lent, at, start, end);
  pthread_mutex_unlock(&lent->lock);
  return 0;
}

/* While a loan lived, all of its pages were in extents that counted it, and its
 * ends were borders. */
void harp_ethdev_revoke(struct ethdev_lent *lent, uintptr_t start, uintptr_t end) {
  pthread_mutex_lock(&lent->lock);
  unsigned at =
      first_behind(lent, start, atomic_load_explicit(&lent->count, memory_order_relaxed));
  while (at < atomic_load_explicit(&lent->count, memory_order_relaxed) &&
         lent->extents[at].start < end) {
    if (--lent->extents[at].loans == 0)
      remove_at(lent, at);
    else
      at++;
  }
  pthread_mutex_unlock(&lent->lock);
}

void harp_ethdev_settle(struct ethdev_lent *lent) {
  pthread_mutex_lock(&lent->lock);
  while (lent->dead) {
    struct ethdev_mapping *mapping = lent->dead;
    lent->dead = mapping->next;
    if (lent->reach == REACH_MAPPED && lent->device)
      rte_vfio_container_dma_unmap(RTE_VFIO_DEFAULT_CONTAINER_FD, mapping->start,
                                   mapping->start, mapping->end - mapping->start);
    free(mapping);
    lent->used--;
  }
  pthread_mutex_unlock(&lent->lock);
}

static bool holds(const struct ethdev_extent *extent, uintptr_t address) {
  return extent->start <= address && address < extent->end;
}

bool harp_ethdev_find(struct ethdev_lent *lent, uintptr_t address, unsigned *recent,
                      struct ethdev_extent *extent) {
  unsigned version = atomic_load_explicit(&lent->version, memory_order_acquire);
  unsigned count = atomic_load_explicit(&lent->count, memory_order_relaxed);
  unsigned at = *recent;
  if (version & 1)
    return false;
  if (at < count)
    *extent = get(&lent->extents[at]);
  if (at >= count || !holds(extent, address)) {
    at = first_behind(lent, address, count);
    if (at >= count)
      return false;
    *extent = get(&lent->extents[at]);
  }
  atomic_thread_fence(memory_order_acquire);
  if (atomic_load_explicit(&lent->version, memory_order_relaxed) != version)
    return false;
  *recent = at;
  return extent->mapping && holds(extent, address);
}
