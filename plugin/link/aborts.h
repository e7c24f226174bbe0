/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which resets deserve a warning. NCCL aborts a job by closing links with outstanding
 * requests, on one host after the other. Each such link is then reset, often while this host still
 * has it open. The first reset by a peer deserves a warning, unless this process aborts the job.
 *
 * Thread: any.
 */
#ifndef HARP_PLUGIN_ABORTS_H
#define HARP_PLUGIN_ABORTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  ABORT_S = 5,      /* seconds that an abort may take until all links are closed */
  ABORT_PEERS = 64, /* a power of two; two peers with the same entry may both cause warnings */
};

/* Initialized to zero. */
struct aborts {
  _Atomic(uint64_t) ours;                /* ns: this process's last abort; 0: none */
  _Atomic(uint64_t) resets[ABORT_PEERS]; /* high half: peer address, low half: last reset, s */
};

/* Notes that this process closes a link with outstanding requests. now: ns. */
void aborts_begin(struct aborts *aborts, uint64_t now);
/* Notes that a peer (address in network order) has reset a link. Returns whether that deserves a
 * warning. now: ns. */
bool aborts_reset_is_news(struct aborts *aborts, uint32_t peer, uint64_t now);

#endif
