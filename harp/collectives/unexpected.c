/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/unexpected.h"

#include <stdlib.h>

struct unexpected *unexpected_add(struct unexpected **list, int32_t tag, size_t bytes)
{
  bool fits = bytes < SIZE_MAX - sizeof(struct unexpected);
  struct unexpected *unexpected = fits ? malloc(sizeof *unexpected + bytes) : NULL;
  if (!unexpected) {
    return NULL;
  }
  *unexpected = (struct unexpected){.bytes = bytes, .tag = tag};
  while (*list) {
    list = &(*list)->next;
  }
  *list = unexpected;
  return unexpected;
}

struct unexpected *unexpected_find(struct unexpected *list, int32_t tag)
{
  while (list && !(list->complete && list->tag == tag)) {
    list = list->next;
  }
  return list;
}

void unexpected_drop(struct unexpected **list, struct unexpected *unexpected)
{
  while (*list && *list != unexpected) {
    list = &(*list)->next;
  }
  if (*list) {
    *list = unexpected->next;
  }
  free(unexpected);
}
