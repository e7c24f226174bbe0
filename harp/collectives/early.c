/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/early.h"

#include <stdlib.h>

struct early *early_add(struct early **list, int32_t tag, size_t bytes)
{
  struct early *early = malloc(sizeof *early + bytes);
  if (!early)
    return NULL;
  *early = (struct early){.bytes = bytes, .tag = tag};
  while (*list)
    list = &(*list)->next;
  *list = early;
  return early;
}

struct early *early_find(struct early *list, int32_t tag)
{
  while (list && !(list->complete && list->tag == tag))
    list = list->next;
  return list;
}

void early_drop(struct early **list, struct early *early)
{
  while (*list && *list != early)
    list = &(*list)->next;
  if (*list)
    *list = early->next;
  free(early);
}
