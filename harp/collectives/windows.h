/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: memory of a rank that the other ranks of its host read. Each rank writes its own window
 * only. MPI calls such memory a window, too (MPI-3.1, 11.2.3).
 *
 * A window is a sealed memfd without a name. Its owner offers pid and descriptor, and the others
 * open it below /proc. A rank that cannot, for example in another container, makes all ranks of the
 * group use links. A random token proves that the right file is open. A seal keeps all others from
 * writing after the owner has mapped the file.
 *
 * Each window counts the signals that its owner has given. All ranks give the same signals in an
 * operation, so a number of signals names a moment in it.
 *
 * Thread: the one that drives the group, unless a comment says otherwise.
 */
#ifndef HARP_COLLECTIVES_WINDOWS_H
#define HARP_COLLECTIVES_WINDOWS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WINDOW_CHUNK = 524288, /* bytes of a tensor that are reduced at once */
  WINDOW_BUFFERS = 4,    /* chunks under way */
  WINDOW_TOKEN = 16,     /* bytes */
};

struct window {
  uint8_t token[WINDOW_TOKEN];
  _Alignas(64) _Atomic uint32_t signals; /* a futex, too */
  _Atomic uint32_t sleeps;               /* the owner waits for a futex */
  _Atomic uint32_t left;                 /* 0; or 1 + cause, see windows_leave */
  _Alignas(64) uint8_t operands[WINDOW_BUFFERS][WINDOW_CHUNK];
  uint8_t results[WINDOW_BUFFERS][WINDOW_CHUNK / 2]; /* a host has two ranks at least */
};

/* What a rank tells the others. The ranks of a host have the same byte order. */
struct window_offer {
  uint64_t host; /* a hash: equal for ranks that may open each other's windows */
  int32_t pid, file;
  uint8_t token[WINDOW_TOKEN];
};

struct window_peer {
  int rank;
  int process;                 /* pidfd, or -1 for the rank itself */
  const struct window *window; /* for reading */
};

struct windows {
  struct window_offer offer;
  struct window *own;
  int count, local_rank;        /* ranks of this host, and our number among them */
  struct window_peer *peers;    /* by local rank; the rank itself has an entry, too */
  int hosts, host;              /* of the group, and the number of ours */
  int *cross_ranks;             /* of each host: the rank with our local rank there */
  bool attached;                /* this rank can read all windows of its host */
  bool agreed;                  /* all ranks of the group can: operations may use windows */
  uint32_t base;                /* signals of finished operations */
  const struct window *awaited; /* the driver waits for its signals, or NULL */
  uint32_t awaited_signals;
  uint32_t all_signals; /* that each rank gives in the current operation */
};

/* Makes this rank's window. A host without what it needs makes an offer that nobody can take. */
void windows_init(struct windows *windows);

/* Opens the windows of the ranks on this host. offers: of all ranks, `stride` bytes apart. */
void windows_attach(struct windows *windows, int rank, int ranks, const void *offers,
                    size_t stride);

/* Nobody can open this rank's window from now on. */
void windows_close_offer(struct windows *windows);

/* Tells the other ranks that this one gives no more signals. cause: the rank that failed first, as
 * far as this one knows. Only the first call counts. */
void windows_leave(struct windows *windows, int cause);

void windows_free(struct windows *windows);

/* Gives a signal: what this rank has written to its window can be read. */
void windows_signal(struct windows *windows);

/* Whether the rank has given `number` signals in the current operation. */
bool windows_has_signaled(const struct windows *windows, const struct window *window,
                          uint32_t number);

/* Ends an operation. */
void windows_finish(struct windows *windows);

/* Sleeps until the awaited signal comes, at most `ns`. false: no signal is awaited. */
bool windows_sleep(struct windows *windows, long ns);

enum window_loss { WINDOW_KEPT, WINDOW_LEFT, WINDOW_DIED };

/* While a signal is awaited: whether a rank of the host gives no more signals of the operation.
 * *rank: the one whose process has ended, or else the cause that a rank gave when it left. */
enum window_loss windows_lost(const struct windows *windows, int *rank);

#endif
