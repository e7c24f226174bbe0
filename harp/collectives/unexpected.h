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

/* Adds a message that is not complete; the list owns it. NULL: no memory. */
struct unexpected *unexpected_add(struct unexpected **list, int32_t tag, size_t bytes);

/* The first complete message with the tag, or NULL. */
struct unexpected *unexpected_find(struct unexpected *list, int32_t tag);

/* Removes a message of the list and frees it. */
void unexpected_drop(struct unexpected **list, struct unexpected *unexpected);

#endif
