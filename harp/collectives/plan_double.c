/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/plan_double.h"

static int rank_at(const struct doubling *doubling, int place)
{
  return doubling->ranks ? doubling->ranks[place] : place;
}

static void give(struct doubling *doubling, int place)
{
  int32_t sent = add_send(doubling->schedule, rank_at(doubling, place), doubling_result(doubling),
                          doubling->bytes, doubling->ready);
  if (doubling->sent) {
    doubling->sent[doubling->partial] = sent;
  }
}

/* A send may still read the current result, so the new one lies behind it. */
static int32_t receive_next(struct doubling *doubling, int place)
{
  doubling->partial++;
  int32_t received = add_receive(doubling->schedule, rank_at(doubling, place),
                                 doubling_result(doubling), doubling->bytes, doubling->released);
  if (doubling->sent) {
    start_after(doubling->schedule, received, doubling->sent[doubling->partial]);
  }
  return received;
}

/* Folds the peer's partial result into ours. */
static void fold_from(struct doubling *doubling, int place)
{
  const uint8_t *own = doubling_result(doubling);
  int32_t received = receive_next(doubling, place);
  doubling->ready = add_compute(doubling->schedule, STEP_FOLD_WIDE, doubling_result(doubling), own,
                                doubling->count, received, NO_STEP);
}

/* Ranks beyond a power of two first give their operands to a neighbour, and get the result from it
 * at the end. */
void doubling_add(struct doubling *doubling)
{
  int power = 1, place = doubling->place;
  while (2 * power <= doubling->places) {
    power *= 2;
  }
  /* Of the first `paired` ranks, the odd ones go on. */
  int paired = 2 * (doubling->places - power);
  if (place < paired && place % 2 == 0) {
    give(doubling, place + 1);
    doubling->ready = receive_next(doubling, place + 1);
    return;
  }
  if (place < paired) {
    fold_from(doubling, place - 1);
  }
  int number = place < paired ? place / 2 : place - paired / 2;
  for (int bit = 1; bit < power; bit *= 2) {
    int other = number ^ bit;
    int peer = other < paired / 2 ? 2 * other + 1 : other + paired / 2;
    give(doubling, peer);
    fold_from(doubling, peer);
  }
  if (place < paired) {
    give(doubling, place - 1);
  }
}

/* Our operands, a result of each round, and those of a neighbour. */
size_t doubling_partials(int places)
{
  size_t count = 3;
  for (int power = 2; power <= places && power > 0; power *= 2) {
    count++;
  }
  return count;
}
