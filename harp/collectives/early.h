/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of one rank that came before their receive, in their order.
 *
 * Thread: the driver of the group.
 */
#ifndef HARP_COLLECTIVES_EARLY_H
#define HARP_COLLECTIVES_EARLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct early {
  struct early *next;
  size_t bytes;
  int32_t tag;
  bool complete; /* data holds the message */
  uint8_t data[];
};

/* Adds a message that is not complete; the list owns it. NULL: no memory. */
struct early *early_add(struct early **list, int32_t tag, size_t bytes);

/* The first complete message with the tag, or NULL. */
struct early *early_find(struct early *list, int32_t tag);

/* Removes a message of the list and frees it. */
void early_drop(struct early **list, struct early *early);

#endif
