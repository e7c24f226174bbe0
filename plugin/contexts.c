/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/contexts.h"

#include <errno.h>
#include <stdlib.h>

struct net_context {
  struct net_context *next;
  uintptr_t number;
};

int contexts_add(struct net_contexts *contexts, void **out)
{
  struct net_context *context = malloc(sizeof *context);
  *out = NULL;
  if (!context) {
    return -ENOMEM;
  }
  *context = (struct net_context){contexts->first, ++contexts->last};
  contexts->first = context;
  *out = (void *)context->number;
  return 0;
}

bool contexts_remove(struct net_contexts *contexts, const void *context)
{
  struct net_context **at = &contexts->first;
  while (*at && (*at)->number != (uintptr_t)context) {
    at = &(*at)->next;
  }
  struct net_context *found = *at;
  if (found) {
    *at = found->next;
    free(found);
  }
  return found;
}
