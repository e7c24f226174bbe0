/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Neighbours: who has which hardware address (RFC 826, 5227). A table with a place for each
 * connection, and some for those that have none: a connection keeps its neighbour (neighbour_of),
 * so the table is never full of those in use; of the others the oldest makes room. Frames for a
 * neighbour that has not answered wait in a short queue.
 */
#ifndef HARP_STACK_NEIGHBOUR_H
#define HARP_STACK_NEIGHBOUR_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/list.h"

struct harp_packet;
struct harp_stack;
struct harp_tx_frame;

enum {
  NEIGHBOURS_SPARE = 256, /* places beyond one for each connection */
  NEIGHBOUR_QUEUE = 4,    /* frames that wait for an answer, each */
  NEIGHBOUR_PROBES = 4,   /* requests before a neighbour counts as silent */
};

enum harp_neighbour_state {
  NEIGHBOUR_FREE,
  NEIGHBOUR_INCOMPLETE, /* no answer yet */
  NEIGHBOUR_REACHABLE,
  NEIGHBOUR_PROBE,  /* known, being asked again */
  NEIGHBOUR_FAILED, /* has answered nothing; asked anew when there is something to send */
};

struct harp_neighbour {
  uint32_t address; /* network order */
  uint8_t mac[6];
  uint8_t state; /* enum harp_neighbour_state */
  uint8_t probes;
  uint8_t queued;
  bool disputed;     /* another has claimed the address since it was last confirmed */
  uint64_t deadline; /* ns: next request, or when to check again */
  uint64_t asked;    /* ns: last request */
  uint64_t
      failed_at; /* ns: when the last of a round of requests had no answer; 0: answered since */
  struct harp_neighbour *hash_next;
  struct harp_list waits; /* ASKED and CHECKING: by deadline */
  struct harp_list
      idle_link;          /* without a connection: among those that make room, or the free ones */
  struct harp_list users; /* connections that send to it (neighbour_link of struct harp_tcp) */
  uint32_t user_count;
  struct harp_list holds; /* with frames in its queue: by the time of the first */
  struct harp_packet *queue[NEIGHBOUR_QUEUE];
};

/* A request for this address is due to somebody's wish, ours or its own, and not held back by the
 * limit for unauthenticated peers; of about as many as there are neighbours the latest are
 * remembered. */
void neighbour_expect(struct harp_stack *stack, uint32_t address);
/* An ARP packet says that address is at mac. */
void neighbour_learn(struct harp_stack *stack, uint32_t address, const uint8_t *mac);
/* Whether address is known to be at mac. */
bool neighbour_is(struct harp_stack *stack, uint32_t address, const uint8_t *mac);
/* 0 or -ENOMEM. */
int neighbours_create(struct harp_stack *stack);
void neighbours_destroy(struct harp_stack *stack);
/* The next hop's entry, until another is asked for; NULL: no route (next_hop 0). Asks if need be.
 */
struct harp_neighbour *neighbour_route(struct harp_stack *stack, uint32_t next_hop);
/* The same for a user, a link that joins the entry's list: the entry stays until neighbour_detach.
 */
struct harp_neighbour *neighbour_attach(struct harp_stack *stack, uint32_t next_hop,
                                        struct harp_list *user);
void neighbour_detach(struct harp_stack *stack, struct harp_neighbour *entry,
                      struct harp_list *user);
/* The entry can be sent to now; starts a check when it has grown old. */
bool neighbour_usable(struct harp_stack *stack, struct harp_neighbour *neighbour);
/* The layers above get no answers through it: it is asked now, not when it has grown old. */
void neighbour_probe(struct harp_stack *stack, struct harp_neighbour *neighbour);
/* Keeps a frame until the neighbour answers; larger ones than a packet buffer are lost. */
void neighbour_queue(struct harp_stack *stack, struct harp_neighbour *neighbour,
                     const struct harp_tx_frame *frame);

/* Nobody answers for this neighbour any more. May detach users, the last of which frees it. */
typedef void neighbour_failed(struct harp_neighbour *neighbour);
/* Sends the requests that are due; failed is called for each neighbour that answered none. */
void neighbour_timers(struct harp_stack *stack, neighbour_failed *failed);
/* ns: when that is next; UINT64_MAX: no request is outstanding. */
uint64_t neighbour_timers_next(const struct harp_stack *stack);

#endif
