/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicators that are open, as NCCL names them from version 11 of its net
 * interface on: init gives each a context of its own, finalize brings it back. A
 * context is a number that is never given twice, so one that has ended already, or
 * was never given, names nobody.
 *
 * Thread: one at a time.
 */
#ifndef HARP_PLUGIN_CONTEXTS_H
#define HARP_PLUGIN_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

struct net_contexts {
  struct net_context *first;
  uintptr_t last; /* the number given last */
};

/* Never NULL. 0, or -ENOMEM; *out is NULL then. */
int contexts_add(struct net_contexts *contexts, void **out);
/* Whether it was there; it is gone then. */
bool contexts_remove(struct net_contexts *contexts, const void *context);

#endif
