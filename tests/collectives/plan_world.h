/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in one process that carry out their schedules in a random order. A message is copied at a
 * random moment after both ends have posted it. Its send is done at a later one, as with an
 * acknowledgement: until then the network may read the data again, so they must not change.
 */
#ifndef HARP_TESTS_COLLECTIVES_PLAN_WORLD_H
#define HARP_TESTS_COLLECTIVES_PLAN_WORLD_H

#include <stdbool.h>

#include "harp/collectives/plan.h"

enum {
  WORLD_MOST = 32,  /* ranks */
  WORLD_LATER = 19, /* operations that a rank may begin after the first one */
};

struct world {
  int ranks;
  struct schedule schedules[WORLD_MOST];
  struct links links[WORLD_MOST];
  struct windows windows[WORLD_MOST];             /* after world_share */
  struct schedule later[WORLD_MOST][WORLD_LATER]; /* the next operations; without ranks: none */
  /* Sums of data that have arrived and are not acknowledged, from rank to rank; 0: none. */
  uint64_t unacknowledged[WORLD_MOST][WORLD_MOST];
  /* Bytes of messages between ranks of one host, and of different hosts; after world_share. */
  size_t inside, across;
  unsigned random;
  unsigned idle; /* tries since something moved */
  int slow;      /* a rank whose messages are acknowledged only when nothing else moves */
  bool mismatch; /* ranks of a host have called different operations */
  int lazy;      /* a rank that computes only when nothing else moves, or -1 */
  int asleep;    /* a rank that does nothing, or -1 */
};

void world_init(struct world *world, int ranks, unsigned seed);
void world_free(struct world *world);

/* Gives windows to the ranks. Hosts have `local` ranks each, whose numbers lie `hosts` apart. */
void world_share(struct world *world, int local);

/* A number below limit. */
unsigned world_draw(struct world *world, unsigned limit);

/* Runs until nothing can go on. NULL, or what is wrong with the schedules. */
const char *world_run(struct world *world);

/* Whether a rank has carried out all of its steps. */
bool world_done(const struct world *world, int rank);

#endif
