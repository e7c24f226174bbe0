/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stack whose peer is a fuzzer's input, and the owner of its connections. The owner checks the
 * stack's callbacks: every received and every sent byte must be the pattern's. Everything lies in
 * the arena.
 */
#ifndef HARP_TESTS_FUZZ_WORLD_H
#define HARP_TESTS_FUZZ_WORLD_H

#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "tests/fuzz/fuzz.h"

enum {
  WORLD_CONNECTIONS = 4,
  WORLD_LISTENER = 9,     /* its port */
  WORLD_PEER_PORT = 2000, /* the peer's port of connection 0; the others follow */
  WORLD_OWN_PORT = 3000,  /* local port of connections that the owner opens */
  WORLD_FRAME = 4096,     /* bytes; longest frame */
};
#define WORLD_ADDRESS 0x0200090au /* 10.9.0.2, network order */
#define WORLD_PEER 0x0100090au    /* 10.9.0.1 */

struct connection {
  struct world *world;
  struct harp_tcp *tcp; /* NULL: not open, not accepted yet, or closed */
  uint16_t local_port;
  uint64_t received, pushed, acked; /* bytes of the streams */
  uint32_t to_pull;                 /* bytes that the owner has for pull */
};

struct world {
  struct harp_stack *stack;
  struct harp_listener *listener;
  uint64_t now;
  bool unchecked;   /* the peer's data is not the pattern */
  uint32_t takes;   /* bytes that the owner accepts before it is full */
  uint32_t refuses; /* frames that the device rejects for lack of room */
  struct connection connections[WORLD_CONNECTIONS];
};

/* Creates a world in the arena, with a listener. link: as in harp/stack.h. */
struct world *world_create(int link);
/* Returns the block of a connection in any state; NULL: there is none. */
struct harp_tcp *world_find(const struct world *world, const struct connection *connection);
void world_connect(struct world *world, struct connection *connection);
void world_push(struct connection *connection, uint32_t length, bool end);
/* Receives a frame of at most WORLD_FRAME bytes and ends the burst. The frame comes in two
 * pieces if split is less than its length. */
void world_receive(struct world *world, const uint8_t *frame, uint32_t length, uint32_t split);
/* Advances the clock; an earlier time has no effect. */
void world_advance(struct world *world, uint64_t now);
/* Checks the invariants; call it after every event. */
void world_check(struct world *world);
/* Closes everything and checks that no object is in use. */
void world_end(struct world *world);

#endif
