/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of a run meet: rank 0 listens, the others connect, and all
 * exchange handles, barriers and results over plain TCP, away from the plugin
 * that is measured.
 *
 * Thread: one. Every call blocks, at most for the timeout. Errors: -1, with a
 * sentence from rendezvous_error.
 */
#ifndef HARP_BENCH_RENDEZVOUS_H
#define HARP_BENCH_RENDEZVOUS_H

#include <stddef.h>

struct rendezvous;

/* NULL: no memory. Free with rendezvous_close, also after an error of open. */
struct rendezvous *rendezvous_new(int rank, int ranks, int timeout_ms);
int rendezvous_open(struct rendezvous *meeting, const char *host, const char *port);
/* Everybody's size bytes, in the order of ranks, to everybody: also a barrier. */
int rendezvous_exchange(struct rendezvous *meeting, const void *mine, size_t size, void *all);
const char *rendezvous_error(const struct rendezvous *meeting);
void rendezvous_close(struct rendezvous *meeting);

#endif
