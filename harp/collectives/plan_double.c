/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan_double.h"

static int global_rank(const struct doubling *doubling, int rank)
{
  return doubling->members ? doubling->members[rank] : rank;
}

static void give(struct doubling *doubling, int rank)
{
  int32_t sent = add_send(doubling->schedule, global_rank(doubling, rank),
                          doubling_result(doubling), doubling->bytes, doubling->ready);
  if (doubling->sent) {
    doubling->sent[doubling->partial] = sent;
  }
}

/* A send may still read the current result, so the new one lies behind it. */
static int32_t receive_next(struct doubling *doubling, int rank)
{
  doubling->partial++;
  int32_t received = add_receive(doubling->schedule, global_rank(doubling, rank),
                                 doubling_result(doubling), doubling->bytes, doubling->released);
  if (doubling->sent) {
    start_after(doubling->schedule, received, doubling->sent[doubling->partial]);
  }
  return received;
}

/* Folds the peer's partial result into ours. */
static void fold_from(struct doubling *doubling, int rank)
{
  const uint8_t *own = doubling_result(doubling);
  int32_t received = receive_next(doubling, rank);
  doubling->ready = add_compute(doubling->schedule, STEP_FOLD_WIDE, doubling_result(doubling), own,
                                doubling->count, received, NO_STEP);
}

/* Ranks beyond a power of two first give their operands to a neighbour, and get the result from it
 * at the end. */
void doubling_add(struct doubling *doubling)
{
  int power = 1, rank = doubling->rank;
  while (2 * power <= doubling->size) {
    power *= 2;
  }
  /* Of the first `paired` ranks, the odd ones go on. */
  int paired = 2 * (doubling->size - power);
  if (rank < paired && rank % 2 == 0) {
    give(doubling, rank + 1);
    doubling->ready = receive_next(doubling, rank + 1);
    return;
  }
  if (rank < paired) {
    fold_from(doubling, rank - 1);
  }
  int number = rank < paired ? rank / 2 : rank - paired / 2;
  for (int bit = 1; bit < power; bit *= 2) {
    int other = number ^ bit;
    int peer = other < paired / 2 ? 2 * other + 1 : other + paired / 2;
    give(doubling, peer);
    fold_from(doubling, peer);
  }
  if (rank < paired) {
    give(doubling, rank - 1);
  }
}

/* Our operands, a result of each round, and those of a neighbour. */
size_t doubling_partials(int size)
{
  size_t count = 3;
  for (int power = 2; power <= size && power > 0; power *= 2) {
    count++;
  }
  return count;
}
