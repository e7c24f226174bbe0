/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process group of one rank: its operations, its links, and the threads that drive it.
 *
 * One thread at a time drives the group: its own, or one that waits for an operation. `lock`
 * protects what other threads touch, and `posting` what planners keep for the next operation.
 */
#ifndef HARP_COLLECTIVES_GROUP_H
#define HARP_COLLECTIVES_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "harp/collectives/algorithms.h"
#include "harp/collectives/links.h"
#include "harp/collectives/op.h"
#include "harp/collectives/p2p.h"
#include "harp/collectives/windows.h"

struct harp_group {
  atomic_int references; /* the caller's, and one for each operation */
  int rank, ranks;
  char *names; /* host names, HARP_NAME bytes each */
  struct links links;
  struct windows windows;
  struct algorithms algorithms; /* protected by `posting` */

  /* The driver's. */
  struct op_list collectives; /* the first one runs */
  struct p2p p2p;
  uint64_t deadlines_ns; /* when deadlines were last looked at */

  pthread_mutex_t posting; /* the order of plans is that of posting; precedes `lock` */
  pthread_mutex_t lock;
  pthread_cond_t wake;    /* the group's thread has work, or should end */
  pthread_cond_t changed; /* an operation is done, or nobody drives */
  struct op_list posted;  /* not yet taken by a driver */
  bool driven;            /* a thread drives */
  bool stop;
  bool failed;
  bool links_left;         /* of a failed group, to be closed by its thread */
  char reason[HARP_ERROR]; /* of the failure, or of a requested abort */

  atomic_int waiters; /* threads that want to drive; the group's thread then lets go */
  atomic_bool has_posted, aborts;
  atomic_int unfinished; /* operations */
  pthread_t thread;
  bool runs; /* the thread */
};

/* One round of progress. Returns the number of events. Thread: the driver. */
unsigned group_round(struct harp_group *group);

/* Ends an operation well. Thread: the driver. */
void group_op_done(struct harp_group *group, struct harp_op *op);

/* Fails the group. Only the first call counts. Thread: the driver. */
void group_fail(struct harp_group *group, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fails the group because of a link to or from a peer. result: ncclResult_t. Thread: the driver.
 */
void group_link_failed(struct harp_group *group, const struct harp_op *op, int peer, bool sends,
                       int result);

static inline const char *group_name(const struct harp_group *group, int rank)
{
  return group->names + (size_t)rank * HARP_NAME;
}

#endif
