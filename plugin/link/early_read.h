/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which receives may be read before they are complete.
 *
 * NCCL's protocols LL and LL128 store flags among the data. The GPU polls the receive buffer for
 * them and uses data as soon as its flag is there. So such a buffer must never get bytes that do
 * not belong to it, not even for a moment. A port places payload by a guess, and this payload may
 * belong to another flow or to a later segment. Payload that is copied before its checksum is
 * complete may be damaged.
 */
#ifndef HARP_PLUGIN_EARLY_READ_H
#define HARP_PLUGIN_EARLY_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/net.h"

/* NCCL's settings that change how it marks receives, or the sizes of its buffers. */
struct early_read {
  bool unmarked; /* NCCL does not mark the receives of LL and LL128 */
  bool resized;  /* the buffers of LL and LL128 have other sizes than by default */
};

/* Reads the environment. */
void early_read_init(struct early_read *rule);

/* Whether the GPU may read the receive's buffer early. region: its registration; may be NULL. */
bool early_read_possible(const struct early_read *rule, enum net_completion completion,
                         const struct net_region *region);

/* Copies bytes in ascending order. Eight aligned bytes become visible at once. memcpy promises
 * neither: it may store the first bytes last. */
void early_read_copy(uint8_t *to, const uint8_t *from, size_t length);

#endif
