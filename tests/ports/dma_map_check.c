/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the DMA map against a counter per page, with random registrations and revocations. Usage:
 * dma_map_check SEED STEPS BUDGET. Prints the first error, or the numbers of pages found within
 * reach and out of reach.
 */
#include <stdio.h>
#include <stdlib.h>

#include "dpdk_glue/dpdk/dma_map.h"

enum { PAGE = 4096, PAGES = 4096, LIVE = 600, FIRST = 1 << 20 };

struct region {
  uintptr_t start, end;
};

static unsigned counts[PAGES];
static struct region live[LIVE];
static unsigned live_count;
static unsigned long within, beyond;

static uintptr_t random_below(uintptr_t limit) { return (uintptr_t)random() % limit; }

static struct region random_region(void)
{
  uintptr_t first = random_below(PAGES), most = random_below(8) ? 12 : 900;
  uintptr_t count = 1 + random_below(most);
  uintptr_t last = first + count < PAGES ? first + count : PAGES;
  return (struct region){FIRST + first * PAGE, FIRST + last * PAGE};
}

static void change(struct region region, int by)
{
  for (uintptr_t at = region.start; at < region.end; at += PAGE) {
    counts[(at - FIRST) / PAGE] += (unsigned)by;
  }
}

static void check(struct dma_table *table)
{
  unsigned recent = 0;
  struct dma_extent extent;
  for (unsigned page = 0; page < PAGES; page++) {
    uintptr_t at = FIRST + page * (uintptr_t)PAGE + random_below(PAGE);
    bool found = harp_dma_find(table, at, &recent, &extent);
    if (found && (!counts[page] || extent.start > at || extent.end <= at)) {
      printf("page %u is found, but is not registered\n", page);
      exit(1);
    }
    if (!found && counts[page] && table->used < table->budget && table->budget > PAGES) {
      printf("page %u is registered, but is not found\n", page);
      exit(1);
    }
    within += found;
    beyond += !found && counts[page];
  }
  if (table->used > table->budget) {
    printf("%u extents for a budget of %u\n", table->used, table->budget);
    exit(1);
  }
}

static void step(struct dma_table *table)
{
  if (live_count < LIVE && (live_count == 0 || random_below(100) < 55)) {
    struct region region = random_region();
    if (harp_dma_map(table, region.start, region.end) != 0) {
      printf("a registration failed\n");
      exit(1);
    }
    change(region, 1);
    live[live_count++] = region;
    return;
  }
  unsigned which = (unsigned)random_below(live_count);
  struct region region = live[which];
  live[which] = live[--live_count];
  harp_dma_revoke(table, region.start, region.end);
  harp_dma_unmap_deferred(table);
  change(region, -1);
}

int main(int argc, char **argv)
{
  struct dma_table table;
  if (argc != 4) {
    return 2;
  }
  srandom((unsigned)atoi(argv[1]));
  if (harp_dma_table_init(&table, REACH_PROCESS, NULL, (uint32_t)atoi(argv[3])) != 0) {
    return 2;
  }
  for (int i = 0; i < atoi(argv[2]); i++) {
    step(&table);
    if (i % 16 == 0) {
      check(&table);
    }
  }
  while (live_count) {
    struct region region = live[--live_count];
    harp_dma_revoke(&table, region.start, region.end);
    change(region, -1);
  }
  harp_dma_unmap_deferred(&table);
  check(&table);
  if (atomic_load(&table.count) || table.used) {
    printf("%u extents remain, %u in reach\n", atomic_load(&table.count), table.used);
    return 1;
  }
  harp_dma_table_close(&table);
  printf("within %lu beyond %lu\n", within, beyond);
  return 0;
}
