/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm an all_reduce by links takes, by the bytes of its accumulators. All ranks of a
 * group have the same table, or their schedules do not match. harp_group_choose explains the
 * classes of sizes.
 *
 * Thread: any, one at a time for a table.
 */
#ifndef HARP_COLLECTIVES_ALGORITHMS_H
#define HARP_COLLECTIVES_ALGORITHMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/collectives/collectives.h"

struct algorithms {
  int ranks;
  uint8_t of[2][HARP_SIZE_CLASSES]; /* enum harp_algorithm, by whether the accumulators are wide */
};

/* The fixed rule. bytes: of the accumulators. */
enum harp_algorithm algorithms_fixed(int ranks, bool wide, size_t bytes);

/* Fills the table with the fixed rule. */
void algorithms_init(struct algorithms *algorithms, int ranks);

/* Returns the algorithm before; -1: such operands or ranks cannot use the algorithm. */
int algorithms_choose(struct algorithms *algorithms, bool wide, int size_class, int algorithm);

enum harp_algorithm algorithms_find(const struct algorithms *algorithms, bool wide, size_t bytes);

#endif
