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

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

enum { HARP_MAX_LISTENERS = 4096 };

struct harp_listener;
struct harp_neighbour;
struct harp_socket;
struct harp_tcp;

struct harp_stack {
  uint64_t now; /* ns */
  struct harp_stack_config config;
  struct harp_stack_io io;
  struct harp_stack_callbacks callbacks; /* of harp_stack_create */
  uint64_t *counters;
  uint64_t own_counters[HARP_COUNTERS];

  uint8_t link_header;  /* bytes: 14 or 0 */
  uint32_t max_payload; /* largest TCP payload of one output call, bytes */

  struct harp_tcp **buckets;  /* connection table */
  uint64_t bucket_multiplier; /* secret, odd */
  uint32_t bucket_count;      /* a power of two, */
  uint32_t bucket_shift;      /* and 64 less its logarithm */
  struct harp_tcp **heap;     /* timers: a binary heap by heap_key */
  uint32_t heap_count;
  struct harp_tcp *dirty; /* connections with something to do at flush */
  struct harp_tcp *dirty_last;
  struct harp_tcp *current; /* being looked at: its block stays though a callback closes it */
  struct harp_tcp *held;    /* connections whose acknowledgement waits for the next flush */
  struct harp_listener **listeners; /* by port */
  uint32_t listener_shift;
  /* What makes room when there is none, the oldest first: handshakes, and ownerless TIME-WAIT. */
  struct harp_list half_open, time_wait;
  uint32_t half_open_count;

  struct harp_pool connections, packets, references, records, listener_pool;

  struct harp_neighbour *neighbours; /* entry 0 alone on a link without any */
  struct harp_neighbour **neighbour_buckets;
  uint32_t *expected;        /* addresses that may be asked for at any time, by their hash */
  uint32_t neighbour_count;  /* entries; of buckets and expected there are a power of two */
  uint32_t neighbour_shift;  /* 64 less its logarithm */
  uint32_t neighbour_frames; /* that wait for answers */
  struct harp_list neighbours_free, neighbours_waiting; /* waiting: by deadline */
  struct harp_list neighbours_holding;                  /* frames, the first the longest */
  struct harp_list neighbours_incomplete,
      neighbours_idle;        /* without a connection, the oldest first */
  uint8_t linear[65536 + 64]; /* for frames that came in awkward pieces */

  bool tentative;  /* the address is not ours yet: nothing is answered for it */
  bool announced;  /* and so it is defended */
  bool conflicted; /* conflict_mac has claimed it, */
  uint8_t conflict_mac[6];
  uint64_t conflict_heard; /* ns: then for the last time */

  struct harp_limit icmp_limit;  /* messages */
  struct harp_limit reset_limit; /* of unauthenticated peers */
  struct harp_limit cookie_limit;
  struct harp_limit arp_limit;        /* replies */
  struct harp_limit arp_ask_limit;    /* of unauthenticated peers for the first time */
  struct harp_limit arp_repeat_limit; /* and again */
  uint32_t port_offset;               /* RFC 6056's counter */

  bool port_full; /* since the last flush began */
  struct harp_socket *sockets;
  uint32_t socket_count;
  int free_socket;             /* head of the list; -1: none */
  int ready_first, ready_last; /* sockets that harp_tcp_ready will list; -1: none */
  bool starved;                /* a socket found no memory to send from */
};

#define COUNT(stack, name) ((stack)->counters[HARP_COUNTER_##name]++)
#define COUNT_N(stack, name, n) ((stack)->counters[HARP_COUNTER_##name] += (n))
#define COUNT_DOWN(stack, name) ((stack)->counters[HARP_COUNTER_##name]--)

/* Returns closed connections' blocks to the pool at once. */
void stack_free_closed(struct harp_stack *stack);

#endif
