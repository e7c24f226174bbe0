/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/unexpected.h"

#include <stdlib.h>

struct unexpected *unexpected_add(struct unexpected_list *list, int32_t tag, size_t bytes)
{
  bool fits = bytes < SIZE_MAX - sizeof(struct unexpected);
  struct unexpected *unexpected = fits ? malloc(sizeof *unexpected + bytes) : NULL;
  if (!unexpected) {
    return NULL;
  }
  *unexpected = (struct unexpected){.bytes = bytes, .tag = tag};
  if (list->last) {
    list->last->next = unexpected;
  } else {
    list->first = unexpected;
  }
  list->last = unexpected;
  return unexpected;
}

struct unexpected *unexpected_find(const struct unexpected_list *list, int32_t tag)
{
  struct unexpected *at = list->first;
  while (at && !(at->complete && at->tag == tag)) {
    at = at->next;
  }
  return at;
}

void unexpected_drop(struct unexpected_list *list, struct unexpected *unexpected)
{
  struct unexpected *before = NULL;
  for (struct unexpected *at = list->first; at != unexpected; at = at->next) {
    before = at;
  }
  if (before) {
    before->next = unexpected->next;
  } else {
    list->first = unexpected->next;
  }
  if (list->last == unexpected) {
    list->last = before;
  }
  free(unexpected);
}
