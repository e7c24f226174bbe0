/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posted operations. The caller and the group each hold a reference.
 *
 * Thread: fields are the driver's, until `state` changes; then they are the caller's.
 */
#ifndef HARP_COLLECTIVES_OP_H
#define HARP_COLLECTIVES_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "harp/collectives/collectives.h"
#include "harp/collectives/schedule.h"

enum op_state { OP_FAILED = -1, OP_PENDING = 0, OP_DONE = 1 };

struct harp_op {
  struct harp_op *next; /* in a list of the group */
  struct harp_group *group;
  atomic_int references, state;
  enum harp_kind kind;
  uint64_t deadline_ns; /* UINT64_MAX: none */
  int64_t timeout_ms;
  size_t bytes; /* of its largest view, for messages */
  /* Collectives: */
  struct schedule schedule;
  /* Caller's memory. A registration covers a view, and not only a slice of it. */
  struct harp_view *views;
  int view_count;
  /* Sends and receives: */
  int peer, tag, source;
  void *data;
  size_t posted;       /* bytes of a long send's payload */
  unsigned parts_left; /* messages that are not done */
};

struct op_list {
  struct harp_op *first, **last;
};

static inline void op_list_init(struct op_list *list)
{
  list->first = NULL;
  list->last = &list->first;
}

static inline void op_list_add(struct op_list *list, struct harp_op *op)
{
  op->next = NULL;
  *list->last = op;
  list->last = &op->next;
}

/* Removes the operation that *at, a link of the list, points to. */
static inline struct harp_op *op_list_remove(struct op_list *list, struct harp_op **at)
{
  struct harp_op *op = *at;
  *at = op->next;
  if (!op->next) {
    list->last = at;
  }
  return op;
}

/* Whether it is a send or a receive, and no collective. */
static inline bool kind_is_single(int kind) { return kind == HARP_SEND || kind == HARP_RECEIVE; }

/* For messages: "all_reduce". */
const char *kind_name(int kind);

static inline const char *op_name(const struct harp_op *op) { return kind_name(op->kind); }

/* Drops a reference. */
void op_put(struct harp_op *op);

#endif
