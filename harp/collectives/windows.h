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
 * The owner of a window gives signals, whose numbers rise from operation to operation. The last
 * signal of an operation has the same number on all ranks, so they begin the next one at the same
 * number. A rank may run up to WINDOW_OPERATIONS operations ahead of another one.
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
  WINDOW_CHUNK = 524288,  /* bytes of a tensor that are reduced at once */
  WINDOW_BUFFERS = 4,     /* chunks under way */
  WINDOW_OPERATIONS = 16, /* operations under way */
  WINDOW_SHORT = 131072,  /* bytes of a short operation: it has memory of its own */
  WINDOW_TOKEN = 16,      /* bytes */
  WINDOW_RANKS = 512,     /* of a host at most */
  /* The last signal of operations in which ranks do not know how many signals the others give,
   * counted from their start. Numbers may wrap: all that are compared lie less than 2^31 apart. */
  WINDOW_LAST_SIGNAL = 1 << 26,
};

/* One rank may wait for the end of operation n - 16 when another one has finished n + 15. */
_Static_assert((2ull * WINDOW_OPERATIONS - 1) * WINDOW_LAST_SIGNAL < 1ull << 31,
               "numbers of signals are too far apart to be compared");

/* What a rank calls in an operation. */
struct window_call {
  int32_t kind, dtype, reduction, root; /* of struct harp_call; 0 if the kind has none */
  uint64_t sizes;                       /* a hash of what all ranks must agree on, or 0 */
  uint64_t gives[WINDOW_RANKS];         /* bytes for each local rank */
};

struct window {
  uint8_t token[WINDOW_TOKEN];
  _Alignas(64) _Atomic uint32_t signals;       /* the number of the last one; a futex, too */
  _Atomic uint32_t sleeps;                     /* the owner waits for a futex */
  _Atomic uint32_t left;                       /* 0; or 1 + cause, see windows_leave */
  struct window_call calls[WINDOW_OPERATIONS]; /* by the number of the operation */
  _Alignas(64) uint8_t operands[WINDOW_BUFFERS][WINDOW_CHUNK];
  uint8_t results[WINDOW_BUFFERS][WINDOW_CHUNK / 2]; /* a host has two ranks at least */
  uint8_t shorts[WINDOW_OPERATIONS][WINDOW_SHORT];
};

/* Of the operations that were planned. Thread: the one that plans. */
struct window_plans {
  uint32_t operations;              /* their number */
  uint32_t signals;                 /* the last signal of them */
  uint32_t ends[WINDOW_OPERATIONS]; /* the last signal of each of the last ones */
  uint32_t filled;                  /* of the last one in which this rank used the buffers */
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
  int count, local_rank;     /* ranks of this host, and our number among them */
  struct window_peer *peers; /* by local rank; the rank itself has an entry, too */
  int hosts, host;           /* of the group, and the number of ours */
  int *grid;                 /* all ranks, by local rank and then by host */
  bool attached;             /* this rank can read all windows of its host */
  bool agreed;               /* all ranks of the group can: operations may use windows */
  struct window_plans plans;
  const struct window *awaited; /* the driver waits for its signal, or NULL */
  uint32_t awaited_signal;
  uint32_t last_signal; /* of each rank in the current operation */
};

/* By host: the ranks with this local rank. */
static inline const int *windows_cross_ranks(const struct windows *windows, int local_rank)
{
  return &windows->grid[local_rank * windows->hosts];
}

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
void windows_signal(struct windows *windows, uint32_t number);

/* Whether the rank has given this signal, or a later one. Thread: any. */
bool window_has_signaled(const struct window *window, uint32_t number);

enum window_match { WINDOW_MATCHES, WINDOW_OTHER_CALL, WINDOW_OTHER_SIZE, WINDOW_OTHER_SIZES };

/* Whether a rank that has given a signal of an operation makes the same call as this rank, gives it
 * `bytes`, and has the same sizes for all ranks. call: where both tell it. */
enum window_match windows_match(const struct windows *windows, const struct window *window,
                                size_t call, uint64_t bytes);

/* Sleeps until the awaited signal comes, at most `ns`. false: no signal is awaited. */
bool windows_sleep(struct windows *windows, long ns);

enum window_loss { WINDOW_KEPT, WINDOW_LEFT, WINDOW_DIED };

/* While a signal is awaited: whether a rank of the host gives no more signals of the operation.
 * *rank: the one whose process has ended, or else the cause that a rank gave when it left. */
enum window_loss windows_lost(const struct windows *windows, int *rank);

#endif
