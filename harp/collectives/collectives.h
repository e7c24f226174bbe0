/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collective operations on host memory over an NCCL net plugin. harp.torch calls them.
 *
 * A process opens the plugin once. Each process group has a harp_group, and its ranks exchange the
 * groups' handles by a store of their own. Links between ranks open when an operation first needs
 * them. Collectives of a group run one after the other, in the order of their posting, which must
 * be the same on all ranks. Sends and receives run beside them.
 *
 * Threads: any, unless a comment says otherwise. One thread of each group makes progress. A thread
 * that waits for an operation makes progress itself.
 * Fork: a child of a process that has opened the plugin gets an error from each call, or nothing
 * happens. The parent goes on.
 * Errors: a sentence for users in error[HARP_ERROR]. A failed link, a timeout or an abort fails the
 * whole group: its operations end with the same sentence, and then its links close, so that the
 * other ranks fail too.
 */
#ifndef HARP_COLLECTIVES_COLLECTIVES_H
#define HARP_COLLECTIVES_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#define HARP_PUBLIC __attribute__((visibility("default")))

enum {
  HARP_ERROR = 768,  /* bytes of an error's sentence, with its 0 */
  HARP_HANDLE = 160, /* bytes of a group's handle: where it listens, and its window's offer */
  HARP_NAME = 80,    /* bytes of a host's name, with its 0 */
  HARP_ANY_RANK = -1,
};

/* harp/torch/library.py has the same numbers. */
enum harp_kind {
  HARP_ALL_REDUCE,     /* out[0], in place */
  HARP_REDUCE,         /* out[0], in place at the root; the others keep theirs */
  HARP_BROADCAST,      /* out[0] */
  HARP_ALL_GATHER,     /* in[0] to out[rank] of each rank */
  HARP_REDUCE_SCATTER, /* in[rank] of all ranks to out[0] */
  HARP_ALL_TO_ALL,     /* in[rank] to out[own rank] of that rank */
  HARP_GATHER,         /* in[0] to out[rank] of the root */
  HARP_SCATTER,        /* in[rank] of the root to out[0] */
  HARP_BARRIER,
  HARP_SEND,    /* in[0] */
  HARP_RECEIVE, /* out[0] */
  HARP_KINDS,
};

enum harp_dtype {
  HARP_UINT8,
  HARP_INT8,
  HARP_UINT16,
  HARP_INT16,
  HARP_UINT32,
  HARP_INT32,
  HARP_UINT64,
  HARP_INT64,
  HARP_FLOAT32,
  HARP_FLOAT64,
  HARP_FLOAT16,  /* folded in float32, rounded once */
  HARP_BFLOAT16, /* the same */
  HARP_BOOL,     /* bytes of 0 or 1 */
  HARP_DTYPES,
};

enum harp_reduction {
  HARP_SUM, /* of bool: or */
  HARP_PRODUCT,
  HARP_MIN, /* NaN if any is NaN */
  HARP_MAX,
  HARP_BAND,
  HARP_BOR,
  HARP_BXOR,
  HARP_AVERAGE, /* sum / ranks; integers are cut toward 0 */
  HARP_REDUCTIONS,
};

/* Of all_reduce by links. */
enum harp_algorithm {
  HARP_DOUBLING, /* recursive doubling */
  HARP_PAIRWISE, /* each rank reduces a share, by pairwise exchange */
  HARP_HALVING,  /* recursive halving and doubling */
  HARP_RING,
};

enum { HARP_SIZE_CLASSES = 8 };

struct harp_view {
  void *data;
  size_t bytes;
};

struct harp_call {
  int32_t kind;       /* enum harp_kind */
  int32_t dtype;      /* enum harp_dtype, of reductions */
  int32_t reduction;  /* enum harp_reduction */
  int32_t peer;       /* root; peer of send and receive, or HARP_ANY_RANK */
  int32_t tag;        /* of send and receive, 0 or more */
  int32_t waits;      /* 1: the caller waits at once, so no thread is woken */
  int64_t timeout_ms; /* from now on; 0: no limit */
  /* As the kind says: 1 view, or one for each rank. The arrays are read during the call. The memory
   * belongs to the operation until it is done. */
  const struct harp_view *in;
  const struct harp_view *out;
};

struct harp_group;
struct harp_op;

/* Loads the plugin and initialises it; later calls do nothing. The plugin stays until the process
 * ends. path: a file name, or NULL after the first call. 0 or -1. */
HARP_PUBLIC int harp_collectives_open(const char *path, char *error);

/* Makes this rank's part of a group. local: number of the rank on its host; it chooses the NIC.
 * handle: receives HARP_HANDLE bytes for the other ranks. NULL on an error. */
HARP_PUBLIC struct harp_group *harp_group_create(int rank, int ranks, int local, void *handle,
                                                 char *error);

/* Gives the group the handles (HARP_HANDLE bytes each) and host names (HARP_NAME bytes each) of all
 * ranks, in their order; both are copied. 0 or -1. */
HARP_PUBLIC int harp_group_start(struct harp_group *group, const void *handles, const char *names,
                                 char *error);

/* Lets operations use shared memory if the ranks of each host can share some and the hosts have the
 * same number of ranks; otherwise, or without this call, they use links alone. All ranks must call
 * it, before they post anything. It waits for them. timeout_ms: 0 for no limit. 1: they share; 0:
 * they use links alone; -1: failed. */
HARP_PUBLIC int harp_group_share(struct harp_group *group, int64_t timeout_ms, char *error);

/* Chooses the algorithm of all_reduce by links for the sizes of a class. All ranks must make the
 * same choice before they post the next operation. wide: 1 for the 16-bit floats, whose sums are
 * float32. size_class: 1 to HARP_SIZE_CLASSES - 1, for sums of more than 16 KiB << size_class and
 * of at most 32 KiB << size_class; the last class also has all larger ones. Returns the algorithm
 * before, or -1: such tensors or ranks cannot use the algorithm. */
HARP_PUBLIC int harp_group_choose(struct harp_group *group, int wide, int size_class,
                                  int algorithm);

/* Fails the group with this reason. */
HARP_PUBLIC void harp_group_abort(struct harp_group *group, const char *reason);

/* Closes the links and ends the group's thread. Unfinished operations fail. The caller may still
 * wait for operations and must free them, but must post no more. May block for seconds, until the
 * peers have acknowledged the last messages. */
HARP_PUBLIC void harp_group_destroy(struct harp_group *group);

/* Posts an operation. NULL on an error; the group then remains as it was, unless it has failed. */
HARP_PUBLIC struct harp_op *harp_post(struct harp_group *group, const struct harp_call *call,
                                      char *error);

/* 0: not done; 1: done; -1: failed. */
HARP_PUBLIC int harp_op_state(struct harp_op *op);

/* Waits until the operation is done. timeout_ms: 0 for no limit. drives: 1 if this thread makes
 * progress meanwhile. 1: done; 0: the time is over; -1: failed, with a sentence. */
HARP_PUBLIC int harp_op_wait(struct harp_op *op, int64_t timeout_ms, int drives, char *error);

/* The rank that a finished receive came from, else -1. */
HARP_PUBLIC int harp_op_source(struct harp_op *op);

/* Releases the caller's handle. An unfinished operation continues. */
HARP_PUBLIC void harp_op_free(struct harp_op *op);

/* For harp.light, in one pass over `count` elements, at most 2^31 - 1: rest += gradient, and
 * gradient = 0. Each sum whose size is not below `bound` is a candidate for top-k, and so is NaN.
 * Its index and value are stored in ascending order of indices, as far as there is room for `room`
 * of them. The memory is the caller's; the arrays do not overlap. Returns the number of
 * candidates. */
HARP_PUBLIC size_t harp_light_candidates(float *rest, float *gradient, size_t count, float bound,
                                         int32_t *indices, float *values, size_t room);

#endif
