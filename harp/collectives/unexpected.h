/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unexpected messages, as MPI calls them: those that came from one rank before their receive was
 * posted. A list keeps them in their order.
 *
 * Thread: the driver of the group.
 */
#ifndef HARP_COLLECTIVES_UNEXPECTED_H
#define HARP_COLLECTIVES_UNEXPECTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct unexpected {
  struct unexpected *next;
  size_t bytes;
  int32_t tag;
  bool complete; /* data holds the message */
  uint8_t data[];
};

struct unexpected_list {
  struct unexpected *first, *last; /* NULL: empty */
};

/* What a message counts for, bytes. It bounds the number of small messages, too. */
static inline uint64_t unexpected_cost(uint64_t bytes)
{
  return bytes < UINT64_MAX - 4096 ? bytes + 4096 : UINT64_MAX;
}

/* Adds a message that is not complete; the list owns it. NULL: no memory. */
struct unexpected *unexpected_add(struct unexpected_list *list, int32_t tag, size_t bytes);

/* The first complete message with the tag, or NULL. */
struct unexpected *unexpected_find(const struct unexpected_list *list, int32_t tag);

/* Removes a message of the list and frees it. */
void unexpected_drop(struct unexpected_list *list, struct unexpected *unexpected);

#endif
