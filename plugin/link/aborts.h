/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from an abort is no news. NCCL aborts a job by closing links with
 * requests outstanding, on one host after the other: each link is then reset, some
 * of them while this host still has them open. The first reset by a peer is worth a
 * warning, unless this process is the one that aborts.
 *
 * Thread: any.
 */
#ifndef HARP_PLUGIN_ABORTS_H
#define HARP_PLUGIN_ABORTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  ABORT_S = 5,      /* how long an abort may take until all links are closed */
  ABORT_PEERS = 64, /* a power of two; where two meet in one place both are news */
};

/* All zero: nothing has happened yet. */
struct aborts {
  _Atomic(uint64_t) ours;                /* ns: the last abort of ours */
  _Atomic(uint64_t) resets[ABORT_PEERS]; /* a peer's address, and the second of its last reset */
};

/* This process closes a link with requests outstanding. now: ns. */
void aborts_begin(struct aborts *aborts, uint64_t now);
/* A peer (address in network order) has reset a link. Whether that is worth a warning. */
bool aborts_reset_is_news(struct aborts *aborts, uint32_t peer, uint64_t now);

#endif
