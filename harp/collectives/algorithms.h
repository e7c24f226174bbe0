/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm an all_reduce by links takes, by the bytes of its accumulators. All ranks of a
 * group have the same table, or their schedules do not match.
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
  uint8_t of[2][HARP_SIZES]; /* enum harp_algorithm, by whether the accumulators are wide */
};

/* Fills the table with the fixed rule. */
void algorithms_init(struct algorithms *algorithms, int ranks);

/* false: the algorithm cannot run with these operands or ranks, and the table is as before. */
bool algorithms_choose(struct algorithms *algorithms, bool wide, int size, int algorithm);

enum harp_algorithm algorithms_find(const struct algorithms *algorithms, bool wide, size_t bytes);

#endif
