/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the DMA map against a counter per page, with random registrations and revocations. Usage:
 * dma_map_check SEED LOANS BUDGET. Prints the first error, or the numbers of pages found within
 * reach and out of reach.
 */
#include <stdio.h>
#include <stdlib.h>

#include "dpdk_glue/dpdk/dma_map.h"

enum { PAGE = 4096, PAGES = 4096, LIVE = 600, FIRST = 1 << 20 };

struct loan {
  uintptr_t start, end;
};

static unsigned counts[PAGES];
static struct loan live[LIVE];
static unsigned live_count;
static unsigned long within, beyond;

static uintptr_t random_below(uintptr_t limit) { return (uintptr_t)random() % limit; }

static struct loan random_loan(void)
{
  uintptr_t first = random_below(PAGES), most = random_below(8) ? 12 : 900;
  uintptr_t count = 1 + random_below(most);
  uintptr_t last = first + count < PAGES ? first + count : PAGES;
  return (struct loan){FIRST + first * PAGE, FIRST + last * PAGE};
}

static void change(struct loan loan, int by)
{
  for (uintptr_t at = loan.start; at < loan.end; at += PAGE) {
    counts[(at - FIRST) / PAGE] += (unsigned)by;
  }
}

static void check(struct dma_table *lent)
{
  unsigned recent = 0;
  struct dma_extent extent;
  for (unsigned page = 0; page < PAGES; page++) {
    uintptr_t at = FIRST + page * (uintptr_t)PAGE + random_below(PAGE);
    bool found = harp_dma_find(lent, at, &recent, &extent);
    if (found && (!counts[page] || extent.start > at || extent.end <= at)) {
      printf("page %u is found, but is not registered\n", page);
      exit(1);
    }
    if (!found && counts[page] && lent->used < lent->budget && lent->budget > PAGES) {
      printf("page %u is registered, but is not found\n", page);
      exit(1);
    }
    within += found;
    beyond += !found && counts[page];
  }
  if (lent->used > lent->budget) {
    printf("%u extents for a budget of %u\n", lent->used, lent->budget);
    exit(1);
  }
}

static void step(struct dma_table *lent)
{
  if (live_count < LIVE && (live_count == 0 || random_below(100) < 55)) {
    struct loan loan = random_loan();
    if (harp_dma_map(lent, loan.start, loan.end) != 0) {
      printf("a registration failed\n");
      exit(1);
    }
    change(loan, 1);
    live[live_count++] = loan;
    return;
  }
  unsigned which = (unsigned)random_below(live_count);
  struct loan loan = live[which];
  live[which] = live[--live_count];
  harp_dma_revoke(lent, loan.start, loan.end);
  harp_dma_unmap_deferred(lent);
  change(loan, -1);
}

int main(int count, char **words)
{
  struct dma_table lent;
  if (count != 4) {
    return 2;
  }
  srandom((unsigned)atoi(words[1]));
  if (harp_dma_table_init(&lent, REACH_PROCESS, NULL, (uint32_t)atoi(words[3])) != 0) {
    return 2;
  }
  for (int i = 0; i < atoi(words[2]); i++) {
    step(&lent);
    if (i % 16 == 0) {
      check(&lent);
    }
  }
  while (live_count) {
    struct loan loan = live[--live_count];
    harp_dma_revoke(&lent, loan.start, loan.end);
    change(loan, -1);
  }
  harp_dma_unmap_deferred(&lent);
  check(&lent);
  if (atomic_load(&lent.count) || lent.used) {
    printf("%u extents remain, %u in reach\n", atomic_load(&lent.count), lent.used);
    return 1;
  }
  harp_dma_table_close(&lent);
  printf("within %lu beyond %lu\n", within, beyond);
  return 0;
}
