/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives, which match by rank and tag.
 *
 * A message begins with a header. Short payload follows in the same message of the link, longer
 * payload in the next one. A receiver reads a header only while it waits for a receive from that
 * rank, so the link holds back a rank that sends before that. Messages with another tag than the
 * expected one are stored (unexpected.h), up to an eighth of the host's memory. The group fails
 * beyond that.
 *
 * Thread: the driver of the group.
 */
#ifndef HARP_COLLECTIVES_P2P_H
#define HARP_COLLECTIVES_P2P_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/collectives/links.h"
#include "harp/collectives/op.h"

struct harp_group;
struct outbox;
struct inbox;

struct p2p {
  struct outbox *outboxes; /* of each rank */
  struct inbox *inboxes;
  uint8_t *packed;         /* their memory; unused pages cost nothing */
  struct op_list receives; /* without a message */
  uint64_t stored;         /* unexpected_cost of all unexpected messages */
  uint64_t stored_most;
  int busy; /* sends, and receives whose payload is on its way */
};

/* false: no memory. */
bool p2p_init(struct p2p *p2p, int ranks);
void p2p_free(struct p2p *p2p, int ranks);

/* Whether nothing is sent, received or awaited. */
static inline bool p2p_is_idle(const struct p2p *p2p)
{
  return p2p->busy == 0 && !p2p->receives.first;
}

/* Takes an operation over. */
void p2p_add(struct harp_group *group, struct harp_op *op);

/* Returns the number of events. May fail the group. */
unsigned p2p_round(struct harp_group *group);

/* Calls the function for each operation. The function must not end it. */
void p2p_each(struct p2p *p2p, int ranks, void (*visit)(struct harp_op *, void *), void *user);

/* Takes all operations out, for a group that fails. */
void p2p_drain(struct p2p *p2p, int ranks, struct op_list *to);

#endif
