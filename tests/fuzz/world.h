/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stack with connections whose peer is an input, and their owner, who checks
 * what the stack tells it: every byte it gets is the pattern's, and so is every
 * byte that goes out. All of it lies in the arena.
 */
#ifndef HARP_TESTS_FUZZ_WORLD_H
#define HARP_TESTS_FUZZ_WORLD_H

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "tests/fuzz/fuzz.h"

enum {
  WORLD_CONNECTIONS = 4,
  WORLD_LISTENER = 9,     /* its port */
  WORLD_PEER_PORT = 2000, /* the peer's port of connection 0; the others' follow */
  WORLD_OWN_PORT = 3000,  /* ours of those that we open */
  WORLD_FRAME = 4096,     /* bytes; longer ones do not come */
};
#define WORLD_ADDRESS 0x0200090au /* 10.9.0.2, network order */
#define WORLD_PEER 0x0100090au    /* 10.9.0.1 */

struct connection {
  struct world *world;
  struct harp_tcp *tcp; /* NULL: none, or not accepted yet, or over */
  uint16_t local_port;
  uint64_t received, pushed, acked; /* bytes of the streams */
  uint32_t to_pull;                 /* bytes that its owner has, when asked */
};

struct world {
  struct harp_stack *stack;
  struct harp_listener *listener;
  uint64_t now;
  bool unchecked;   /* what the peer sends is not the pattern */
  uint32_t takes;   /* bytes that the owner takes before it is full */
  uint32_t refuses; /* frames that the device has no room for */
  struct connection connections[WORLD_CONNECTIONS];
};

/* In the arena, with a listener; link: of harp/stack.h. */
struct world *world_create(int link);
/* The block of a connection in any state; NULL: there is none. */
struct harp_tcp *world_find(const struct world *world, const struct connection *connection);
void world_connect(struct world *world, struct connection *connection);
void world_push(struct connection *connection, uint32_t length, bool end);
/* A frame of at most WORLD_FRAME bytes, in two pieces where split is less than its length, and
 * the end of its burst. */
void world_receive(struct world *world, const uint8_t *frame, uint32_t length, uint32_t split);
/* The clock does not go back. */
void world_advance(struct world *world, uint64_t now);
/* After every event. */
void world_check(struct world *world);
/* Ends everything: nothing may be in use then. */
void world_end(struct world *world);

#endif
