/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous of a run's ranks. Rank 0 listens and the others connect. All exchange handles,
 * barriers and results over plain TCP, or a UNIX socket, independent of the measured plugin.
 *
 * Thread: one. Every call blocks for the timeout at most. Errors: -1, with a sentence from
 * rendezvous_error.
 */
#ifndef HARP_BENCH_RENDEZVOUS_H
#define HARP_BENCH_RENDEZVOUS_H

#include <stdbool.h>
#include <stddef.h>

struct rendezvous;

/* NULL: out of memory. Free it with rendezvous_close, also after a failed open. */
struct rendezvous *rendezvous_new(int rank, int ranks, int timeout_ms);
/* host "unix": port is the path of a UNIX socket. everywhere: rank 0 listens on all of its
 * addresses, because on the host itself the name host may mean a loopback address. */
int rendezvous_open(struct rendezvous *rendezvous, const char *host, const char *port,
                    bool everywhere);
/* Tells rank 0, in place of rendezvous_open, that this rank does not take part. Waits for rank 0 at
 * most 2 s, and fails silently. */
void rendezvous_decline(struct rendezvous *rendezvous, const char *host, const char *port);
/* Gives every rank the size bytes of all ranks, in the order of ranks. It is also a barrier. */
int rendezvous_exchange(struct rendezvous *rendezvous, const void *mine, size_t size, void *all);
/* Whether a rank has left, with the sentence for rendezvous_error. Does not block. */
bool rendezvous_is_broken(struct rendezvous *rendezvous);
const char *rendezvous_error(const struct rendezvous *rendezvous);
void rendezvous_close(struct rendezvous *rendezvous);

#endif
