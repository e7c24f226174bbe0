/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Very many hosts on one link, in virtual time. Every frame arrives after the same short delay.
 * Timers run once per millisecond. A link is a connection that carries one message in each
 * direction per talk.
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
  PORT = 7000, /* every host listens on this port and the following ones */
};
#define MS 1000000ull

struct host {
  struct harp_stack *stack;
  uint16_t index;
};

/* One end of a link. Times are ns. */
struct end {
  struct host *host;
  struct harp_tcp *tcp; /* NULL: failed, or not yet accepted */
  uint64_t began;       /* start of the current talk; 0: none */
  uint32_t received;
  bool connects;    /* this end connects and sends first */
  struct end *next; /* in the list of accepted ends */
};

struct network {
  struct host *hosts;
  uint32_t count;
  uint32_t ports; /* number of ports that each host listens on */
  uint64_t now;
  uint64_t talks;   /* completed */
  uint64_t longest; /* longest talk since it was last set to 0, ns */
  uint64_t failed;  /* failed links */
};
extern struct network network;

/* Host `index` has the address 10.0.0.1 + index, in network order, and a matching MAC. */
uint32_t address_of(uint32_t index);
void mac_of(uint32_t index, uint8_t mac[6]);
/* connections: capacity of each host. The program exits if there is no memory. */
void network_create(uint32_t hosts, uint32_t connections, uint32_t ports);
void network_destroy(void);
/* Puts a frame on the link. */
void network_send(const uint8_t *frame, uint32_t length);
/* Runs all events up to a time. */
void network_run(uint64_t until);
uint64_t network_sum(enum harp_counter counter);

/* Opens a link and talks once. */
void link_open(struct end *end, struct host *from, const struct host *to, uint16_t port);
/* Talks once more. */
void link_talk(struct end *end);
void link_abort(struct end *end);

/* flood.c: sends spoofed SYNs and ARP frames to host 0, and opens links from and to it.
 * unknown_hosts: the number of hosts at the end of the list that host 0 does not know. Returns the
 * number of opened links. */
uint64_t flood(uint32_t unknown_hosts, uint64_t seconds);

#endif
