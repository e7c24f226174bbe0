/* SPDX-License-Identifier: Apache-2.0 */
/* The stack's own state, shared by its files. */
#ifndef HARP_STACK_STATE_H
#define HARP_STACK_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/counters.h"
#include "harp/stack.h"
#include "harp/stack/flow.h"
#include "harp/stack/limit.h"
#include "harp/stack/list.h"
#include "harp/stack/pool.h"
#include "harp/time_units.h"

enum { HARP_MAX_LISTENERS = 4096 };

/* Connections share packet buffers and transmit records. A use leaves 1/SHARE of them free. */
enum {
  RECEIVE_SHARE = 4, /* of the packet buffers: copies of data to send */
  ORDERED_SHARE = 8, /* of the packet buffers: all that is no data in order */
  SACK_SHARE = 8,    /* of the records: the edges of SACK blocks */
};

struct harp_listener;
struct harp_neighbour;
struct harp_socket_table;
struct harp_tcp;

struct harp_stack {
  uint64_t now;     /* ns */
  uint64_t resumed; /* ns: when the last pause of this process ended; 0: there was none */
  struct harp_stack_config config;
  struct harp_stack_io io;
  struct harp_stack_callbacks callbacks; /* those of harp_stack_create */
  uint64_t *counters;
  uint64_t own_counters[HARP_COUNTERS];

  uint8_t link_header;  /* bytes: 14 or 0 */
  uint32_t max_payload; /* largest TCP payload of one output call, bytes */

  struct harp_tcp **buckets;  /* connection table */
  uint64_t bucket_multiplier; /* secret, odd */
  uint32_t bucket_count;      /* a power of two */
  uint32_t bucket_shift;      /* 64 minus the logarithm of bucket_count */
  struct harp_tcp **heap;     /* timers: a binary heap by heap_key */
  uint32_t heap_count;
  struct harp_tcp *dirty; /* connections that the next flush serves */
  struct harp_tcp *dirty_last;
  struct harp_tcp *current; /* used by the running function; stack_free_closed keeps its block */
  struct harp_tcp *held;    /* connections whose acknowledgement waits for the next flush */
  struct harp_listener **listeners; /* by port */
  uint32_t listener_shift;
  /* Half-open connections, and connections in TIME-WAIT without an owner, the oldest first. A new
   * connection replaces one of them when the pool is empty. */
  struct harp_list half_open, time_wait;
  uint32_t half_open_count;

  struct harp_pool connections, packets, references, records, listener_pool;

  struct harp_neighbour *neighbours; /* on a link without ARP: entry 0 only */
  struct harp_neighbour **neighbour_buckets;
  uint32_t *expected;        /* addresses exempt from the limits of ARP requests, by their hash */
  uint32_t neighbour_count;  /* entries in neighbours */
  uint32_t neighbour_shift;  /* 64 minus the logarithm of the number of buckets */
  uint32_t neighbour_frames; /* frames queued for neighbours in INCOMPLETE */
  struct harp_list neighbours_free,
      neighbours_waiting;              /* waiting: a request is outstanding, by deadline */
  struct harp_list neighbours_holding; /* with queued frames, the oldest queue first */
  struct harp_list neighbours_incomplete,
      neighbours_idle;        /* without a connection, the oldest first */
  uint8_t linear[65536 + 64]; /* for frames whose payload is in two pieces */

  bool tentative;  /* RFC 5227: the address is not verified; the stack answers nothing for it */
  bool announced;  /* the address was announced; the stack defends it */
  bool conflicted; /* another host, conflict_mac, has claimed the address */
  uint8_t conflict_mac[6];
  uint64_t last_conflict; /* ns: time of the latest conflict */

  struct harp_limit icmp_limit;  /* ICMP messages sent */
  struct harp_limit reset_limit; /* RSTs to unauthenticated peers */
  struct harp_limit cookie_limit;
  struct harp_limit arp_limit;        /* ARP replies to hosts that are not neighbours */
  struct harp_limit arp_ask_limit;    /* first ARP requests for addresses not in expected */
  struct harp_limit arp_repeat_limit; /* repeated ARP requests for them */
  uint32_t port_offset;               /* RFC 6056's counter */

  bool port_full; /* the port has refused an IPv4 packet since the last flush began */
  struct harp_socket_table *sockets;
};

#define COUNT(stack, name) ((stack)->counters[HARP_COUNTER_##name]++)
#define COUNT_N(stack, name, n) ((stack)->counters[HARP_COUNTER_##name] += (n))
#define COUNT_DOWN(stack, name) ((stack)->counters[HARP_COUNTER_##name]--)

/* Returns the blocks of closed connections to the pool at once. */
void stack_free_closed(struct harp_stack *stack);

#endif
