/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The open communicators, for version 11 and later of NCCL's net interface: init gives each
 * communicator a context, and finalize returns it. Contexts are numbers that are never reused, so
 * finalize of an ended or unknown context can be detected.
 *
 * Thread: one at a time.
 */
#ifndef HARP_PLUGIN_CONTEXTS_H
#define HARP_PLUGIN_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

struct net_contexts {
  struct net_context *first;
  uintptr_t last; /* the last number that was given */
};

/* Adds a context. 0 with *out not NULL, or -ENOMEM with *out NULL. */
int contexts_add(struct net_contexts *contexts, void **out);
/* Removes a context. Returns whether it was known. */
bool contexts_remove(struct net_contexts *contexts, const void *context);

#endif
