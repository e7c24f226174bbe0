/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What plan_exchange.c, for windows, and plan_across.c, for links, have in common. See there.
 *
 * Thread: as planners.
 */
#ifndef HARP_COLLECTIVES_PLAN_EXCHANGE_H
#define HARP_COLLECTIVES_PLAN_EXCHANGE_H

#include "harp/collectives/plan.h"

/* What we exchange with one rank of the host, in one segment. With ourselves: what we give to
 * ourselves. */
struct part {
  struct harp_view given, taken;
  bool matches; /* that rank must call what we call, also if it gives no bytes */
};

/* Steps of the last messages to or from a rank on another host, by their staging. */
struct staged {
  int32_t sent[LINK_STAGED], folded[LINK_STAGED];
};

struct exchange {
  struct plan *plan;
  struct schedule *schedule;
  const struct windows *windows;
  int segments;          /* that chunks alternate between */
  struct part *parts;    /* by local rank and segment */
  struct staged *staged; /* by host; for reduce_scatter on several hosts */
  bool same;             /* all readers of a rank get the same bytes */
  size_t part_bytes;     /* of a chunk, for one reader */
  size_t short_bytes;    /* the most of what is short, for one reader */
  size_t rounds;
};

static inline const struct part *exchange_parts(const struct exchange *exchange, int local_rank)
{
  return &exchange->parts[local_rank * exchange->segments];
}

static inline int exchange_segment(const struct exchange *exchange, size_t chunk)
{
  return (int)(chunk % (size_t)exchange->segments);
}

/* The bytes of a view that a chunk has; without bytes behind its end. */
struct harp_view exchange_cut(const struct exchange *exchange, const struct harp_view *view,
                              size_t chunk);

/* Segments of an operation whose ranks are on these hosts. */
int across_segments(const struct plan *plan);

/* A hash of the sizes of all ranks, which the ranks of a host compare: the sum of a rank's segments
 * may be right although two sizes are exchanged. 0: nothing to compare. */
uint64_t across_sizes(const struct plan *plan);

/* The part of a segment that we exchange with a rank of this host, if there are several hosts. */
struct part across_part(const struct plan *plan, int local_rank, int segment);

/* false: no memory. */
bool across_init(struct exchange *exchange);

/* Adds the messages that precede our gift of a chunk. Returns the step that it must wait for. */
int32_t across_give(struct exchange *exchange, size_t chunk);

/* Adds the messages that follow a chunk of a broadcast, which the last step of computing has taken.
 */
void across_take(struct exchange *exchange, size_t chunk);

/* Where this host's partial result of a chunk of reduce_scatter goes if it is for another host,
 * else NULL. *after: the step that its memory is free after. */
void *across_partial(struct exchange *exchange, size_t chunk, int32_t *after);

/* Exchanges the partial result, which the last step of computing completes. false: it is for
 * another host. */
bool across_fold(struct exchange *exchange, size_t chunk, void *partial, size_t count);

#endif
