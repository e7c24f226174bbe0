/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of three ranks in one process, one with shared memory and one without. Several threads
 * post operations, wait for them, look at them and end the group, all at once. The thread sanitizer
 * watches.
 *
 * Usage: group-check PLUGIN. Exit: 0, or 1 after printing what is wrong.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "harp/collectives/collectives.h"

enum {
  RANKS = 3,
  OPERATIONS = 12,
  COUNT = 100000, /* elements of the largest tensor: slices, and the ring */
  TIMEOUT_MS = 60000,
};

static atomic_uint wrong;

static void expect(int right, const char *what, const char *why)
{
  if (!right && atomic_fetch_add(&wrong, 1) < 20) {
    printf("wrong: %s: %s\n", what, why);
  }
}

struct rank {
  int number;
  pthread_t thread;
  struct harp_group *group;
  struct harp_op *ops[OPERATIONS];
  float tensors[OPERATIONS][COUNT];
};

static struct rank ranks[RANKS];
static char handles[RANKS][HARP_HANDLE], names[RANKS][HARP_NAME];
static pthread_barrier_t all_ranks;

static struct harp_op *post(struct rank *rank, int kind, int peer, const struct harp_view *view)
{
  char error[HARP_ERROR] = "";
  struct harp_call call = {.kind = kind,
                           .dtype = HARP_FLOAT32,
                           .reduction = HARP_SUM,
                           .peer = peer,
                           .timeout_ms = TIMEOUT_MS,
                           .in = view,
                           .out = view};
  struct harp_op *op = harp_post(rank->group, &call, error);
  expect(op != NULL, "post", error);
  return op;
}

/* A wait without driving, of all operations. */
static void *wait_beside(void *argument)
{
  struct rank *rank = argument;
  char error[HARP_ERROR] = "";
  for (int i = 0; i < OPERATIONS; i++) {
    expect(harp_op_wait(rank->ops[i], TIMEOUT_MS, 0, error) == 1, "wait beside", error);
  }
  return NULL;
}

/* Waits that drive, from the last operation to the first. */
static void *wait_backwards(void *argument)
{
  struct rank *rank = argument;
  char error[HARP_ERROR] = "";
  for (int i = OPERATIONS - 1; i >= 0; i--) {
    expect(harp_op_wait(rank->ops[i], TIMEOUT_MS, 1, error) == 1, "wait backwards", error);
  }
  return NULL;
}

static bool all_are(const float *tensor, size_t count, float right)
{
  for (size_t at = 0; at < count; at++) {
    if (tensor[at] != right) {
      return false;
    }
  }
  return true;
}

static size_t count_of(int operation)
{
  return operation % 3 == 0 ? 1 : operation % 3 == 1 ? COUNT / 10 : COUNT;
}

static bool is_broadcast(int operation) { return operation % 4 == 1; }

/* Sums and broadcasts of several sizes, and a message around the ring, all under way at once. */
static void reduce_at_once(struct rank *rank)
{
  pthread_t threads[2];
  char error[HARP_ERROR] = "";
  for (int i = 0; i < OPERATIONS; i++) {
    size_t count = i == OPERATIONS - 1 ? COUNT / 10 : count_of(i);
    struct harp_view view = {rank->tensors[i], count * sizeof(float)};
    for (size_t at = 0; at < count; at++) {
      rank->tensors[i][at] = (float)(rank->number + i);
    }
    if (i == OPERATIONS - 2) {
      rank->ops[i] = post(rank, HARP_SEND, (rank->number + 1) % RANKS, &view);
    } else if (i == OPERATIONS - 1) {
      rank->ops[i] = post(rank, HARP_RECEIVE, (rank->number + RANKS - 1) % RANKS, &view);
    } else if (is_broadcast(i)) {
      rank->ops[i] = post(rank, HARP_BROADCAST, i % RANKS, &view);
    } else {
      rank->ops[i] = post(rank, HARP_ALL_REDUCE, 0, &view);
    }
  }
  pthread_create(&threads[0], NULL, wait_beside, rank);
  pthread_create(&threads[1], NULL, wait_backwards, rank);
  for (int i = 0; i < OPERATIONS; i++) {
    expect(harp_op_wait(rank->ops[i], TIMEOUT_MS, 1, error) == 1, "wait", error);
    expect(harp_op_state(rank->ops[i]) == 1, "state", "the operation is not done");
  }
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
  }
  for (int i = 0; i < OPERATIONS; i++) {
    float sum = (float)(RANKS * i + RANKS * (RANKS - 1) / 2);
    float from = (float)((rank->number + RANKS - 1) % RANKS + OPERATIONS - 2);
    float own = (float)(rank->number + i), root = (float)(i % RANKS + i);
    float right = i == OPERATIONS - 2   ? own
                  : i == OPERATIONS - 1 ? from
                  : is_broadcast(i)     ? root
                                        : sum;
    size_t count = i == OPERATIONS - 1 ? COUNT / 10 : count_of(i);
    expect(all_are(rank->tensors[i], count, right), "result", "another number");
    harp_op_free(rank->ops[i]);
  }
}

/* --- Ends --- */

enum end { BY_ABORT, BY_DESTROY, ENDS };

static const char *const reasons[ENDS] = {"aborted by the check", "shut down"};

static void *wait_for_failure(void *argument)
{
  char error[HARP_ERROR] = "";
  expect(harp_op_wait(argument, TIMEOUT_MS, 1, error) == -1, "end", "the operation did not fail");
  expect(strstr(error, reasons[BY_ABORT]) || strstr(error, reasons[BY_DESTROY]) ||
             strstr(error, "failed"),
         "reason", error);
  return NULL;
}

/* The group ends while another thread waits for a message that does not come. */
static void end_while_waiting(struct rank *rank, enum end end)
{
  pthread_t thread;
  struct harp_view view = {rank->tensors[0], COUNT * sizeof(float)};
  struct harp_op *op = post(rank, HARP_RECEIVE, (rank->number + 1) % RANKS, &view);
  pthread_create(&thread, NULL, wait_for_failure, op);
  if (end == BY_ABORT) {
    harp_group_abort(rank->group, reasons[BY_ABORT]);
  } else {
    harp_group_destroy(rank->group);
  }
  pthread_join(thread, NULL);
  harp_op_free(op);
  if (end == BY_ABORT) {
    harp_group_destroy(rank->group);
  }
}

static void run_group(struct rank *rank, enum end end)
{
  char error[HARP_ERROR] = "";
  rank->group = harp_group_create(rank->number, RANKS, 0, handles[rank->number], error);
  expect(rank->group != NULL, "create", error);
  pthread_barrier_wait(&all_ranks);
  if (!rank->group) {
    return;
  }
  harp_group_start(rank->group, handles, names[0], error);
  if (end == BY_ABORT) { /* the other groups use links alone */
    expect(harp_group_share(rank->group, TIMEOUT_MS, error) == 1, "share", error);
  }
  reduce_at_once(rank);
  pthread_barrier_wait(&all_ranks);
  end_while_waiting(rank, end);
}

static void *rank_main(void *argument)
{
  for (enum end end = 0; end < ENDS; end++) {
    run_group(argument, end);
  }
  return NULL;
}

int main(int argc, char **argv)
{
  char error[HARP_ERROR] = "";
  if (argc != 2 || harp_collectives_open(argv[1], error)) {
    printf("usage: group-check PLUGIN; %s\n", error);
    return 1;
  }
  pthread_barrier_init(&all_ranks, NULL, RANKS);
  for (int i = 0; i < RANKS; i++) {
    ranks[i].number = i;
    pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
  }
  for (int i = 0; i < RANKS; i++) {
    pthread_join(ranks[i].thread, NULL);
  }
  printf("%u wrong\n", atomic_load(&wrong));
  return atomic_load(&wrong) > 0;
}
