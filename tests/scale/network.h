/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Very many hosts on one link layer, in virtual time: a frame arrives everywhere it is for after
 * the same short while, timers run once a millisecond. A link is a connection over which a message
 * goes there and another back.
 */
#ifndef HARP_TESTS_SCALE_NETWORK_H
#define HARP_TESTS_SCALE_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/counters.h"
#include "harp/stack/flow.h"

enum {
  FRAME_MOST = 640, /* bytes */
  MESSAGE = 500,
  PORT = 7000, /* every host listens there, and at the ports behind it */
};
#define MS 1000000ull

struct host {
  struct harp_stack *stack;
  uint16_t index;
};

/* One end of a link. Times are ns. */
struct end {
  struct host *host;
  struct harp_tcp *tcp; /* NULL: it failed, or nothing has come about yet */
  uint64_t began;       /* to talk; 0: it does not */
  uint32_t received;
  bool connects;    /* and speaks first */
  struct end *next; /* of those that were accepted */
};

struct network {
  struct host *hosts;
  uint32_t count;
  uint32_t ports; /* that each host listens at */
  uint64_t now;
  uint64_t talks;   /* that are over */
  uint64_t longest; /* of them, ns, since it was last set to 0 */
  uint64_t failed;  /* links */
};
extern struct network network;

/* Host addresses are 10.0.0.0 and so many, plus 1, with MACs to match; both are network order. */
uint32_t address_of(uint32_t index);
void mac_of(uint32_t index, uint8_t mac[6]);
/* connections: places of each host. The program ends if there is no memory. */
void network_create(uint32_t hosts, uint32_t connections, uint32_t ports);
void network_destroy(void);
/* A frame of somebody's is put on the link. */
void network_send(const uint8_t *frame, uint32_t length);
/* Everything happens up to a time. */
void network_run(uint64_t until);
uint64_t network_sum(enum harp_counter counter);

/* Opens a link and talks once. */
void link_open(struct end *end, struct host *from, const struct host *to, uint16_t port);
/* Talks once more. */
void link_talk(struct end *end);
void link_abort(struct end *end);

/* flood.c: spoofed SYNs and ARP at host 0 for so long, with new links from and to it beside them.
 * unauthenticated peers: the last hosts, which have not met it. Returns how many links there were.
 */
uint64_t flood(uint32_t strangers, uint64_t seconds);

#endif
