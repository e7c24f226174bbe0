/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The neighbour table maps next hops to hardware addresses (RFC 826, RFC 5227). State names are
 * those of RFC 4861. The table has one entry for each connection and NEIGHBOURS_SPARE more. A
 * connection keeps its entry until it closes, so entries in use never fill the table. A new entry
 * replaces the oldest entry without a connection. Frames for a neighbour in INCOMPLETE wait in a
 * short queue.
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
  NEIGHBOURS_SPARE = 256, /* entries beyond one for each connection */
  NEIGHBOUR_QUEUE = 4,    /* queued frames per neighbour */
  NEIGHBOUR_PROBES = 4,   /* unanswered requests before the neighbour has failed */
};

enum harp_neighbour_state {
  NEIGHBOUR_FREE,
  NEIGHBOUR_INCOMPLETE, /* the hardware address is not known, or no longer */
  NEIGHBOUR_REACHABLE,
  NEIGHBOUR_PROBE,  /* known; requests check that it is still there */
  NEIGHBOUR_FAILED, /* no answer to the requests; the next frame starts new ones */
};

struct harp_neighbour {
  uint32_t address; /* network order */
  uint8_t mac[6];
  uint8_t state; /* enum harp_neighbour_state */
  uint8_t probes;
  uint8_t queued;
  bool disputed;      /* another host has claimed the address since its last confirmation */
  uint64_t deadline;  /* ns: next request, or the next check */
  uint64_t requested; /* ns: time of the last request */
  uint64_t failed_at; /* ns: when the last round of requests failed; 0: it has answered since */
  struct harp_neighbour *hash_next;
  struct harp_list waits;     /* in neighbours_waiting, in INCOMPLETE and PROBE */
  struct harp_list idle_link; /* without a connection: in the incomplete, idle or free list */
  struct harp_list users;     /* connections that send to it (neighbour_link of struct harp_tcp) */
  uint32_t user_count;
  struct harp_list holds; /* in neighbours_holding, while it has queued frames */
  struct harp_packet *queue[NEIGHBOUR_QUEUE];
};

/* Exempts requests for this address from the rate limits. Callers name addresses that we connect to
 * and hosts that sent us an ARP request. A hash table with at least as many places as neighbours
 * holds the addresses; a newer address replaces an older one in the same place. */
void neighbour_expect(struct harp_stack *stack, uint32_t address);
/* An ARP packet claims that `address` has the hardware address `mac`. Handles this claim. */
void neighbour_learn(struct harp_stack *stack, uint32_t address, const uint8_t *mac);
/* Returns whether the table maps address to mac. */
bool neighbour_is(struct harp_stack *stack, uint32_t address, const uint8_t *mac);
/* 0 or -ENOMEM. */
int neighbours_create(struct harp_stack *stack);
void neighbours_destroy(struct harp_stack *stack);
/* Returns the entry of the next hop; NULL: no route (next_hop 0). A new entry starts with an ARP
 * request. The pointer is valid until the next call that creates an entry. */
struct harp_neighbour *neighbour_route(struct harp_stack *stack, uint32_t next_hop);
/* Like neighbour_route, but adds user to the entry's users. The entry stays until neighbour_detach.
 */
struct harp_neighbour *neighbour_attach(struct harp_stack *stack, uint32_t next_hop,
                                        struct harp_list *user);
void neighbour_detach(struct harp_stack *stack, struct harp_neighbour *entry,
                      struct harp_list *user);
/* Returns whether the hardware address is known. Starts requests for an entry that is stale or has
 * failed. */
bool neighbour_usable(struct harp_stack *stack, struct harp_neighbour *neighbour);
/* Starts a check of the neighbour now, because upper layers get no answers through it. At most one
 * request a second. */
void neighbour_probe(struct harp_stack *stack, struct harp_neighbour *neighbour);
/* Queues a copy of a frame until the neighbour answers. Drops frames larger than a packet buffer.
 */
void neighbour_queue(struct harp_stack *stack, struct harp_neighbour *neighbour,
                     const struct harp_tx_frame *frame);

/* Called when a neighbour has answered none of its requests. It may detach users; the last detach
 * frees the entry. */
typedef void neighbour_failed(struct harp_neighbour *neighbour);
/* Sends the due requests. Calls failed for each neighbour that answered none of its requests. */
void neighbour_timers(struct harp_stack *stack, neighbour_failed *failed);
/* Returns when neighbour_timers is next needed, ns; UINT64_MAX: no request is outstanding. */
uint64_t neighbour_timers_next(const struct harp_stack *stack);

#endif
