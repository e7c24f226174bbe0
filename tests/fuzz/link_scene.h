/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzzer of links shares among its files: one scene, in which an application
 * (link_application.c) has links with a peer (link_peer.c).
 */
#ifndef HARP_TESTS_FUZZ_LINK_SCENE_H
#define HARP_TESTS_FUZZ_LINK_SCENE_H

#include "plugin/link/crc32c.h"
#include "tests/fuzz/remote.h"
#include "tests/sim/books.h"

enum {
  LINES = 4,
  IDS = 4,          /* of links that come in */
  CHUNK_SIZE = 700, /* of what HARP sends: messages are small here */
  UNTOUCHED = 0xee, /* in a receive's buffer */
};

enum greeting_choice {
  ODD_WORD = 1,   /* an unauthenticated peer's token; a status; */
  WITH_EPOCH = 2, /* of a hello; a welcome: any `received` */
  WRONG_BYTE = 4,
  WRONG_KEY = 8,
  CUT_OFF = 16,
  ODD_VERSIONS = 32,
  UNASKED = 64, /* no challenge first, or no proof */
};

enum chunk_choice {
  ODD_MESSAGE = 1,
  ODD_OFFSET = 2,
  ODD_LENGTH = 4,
  HEADER_ALONE = 8,
  INTERRUPTS = 16, /* the chunk before is not whole */
  WRONG_SUM = 32,
};

struct step {
  uint8_t kind, target, choice, flags;
  uint16_t length, cut;
  uint32_t b, c;
};
_Static_assert(sizeof(struct step) == STEP_SIZE, "an input is a list of them");

struct post {
  struct net_request *request; /* NULL: ended */
  uint8_t *data;               /* NULL: the application has it back */
  uint32_t size;
  uint64_t message;
  struct net_region *region;
};

/* A link of the application's. */
struct line {
  struct net_link *link; /* NULL: none, or being connected */
  bool connecting;
  uint8_t handle[HANDLE_SIZE];
  uint64_t posted;
  struct post posts[LINK_REQUESTS];
};

/* What the peer has said on a link so far. */
struct conversation {
  uint64_t id, message, offset;
  bool odd;         /* chunks have left their order */
  uint64_t spoiled; /* the number + 1 of a message with a chunk whose sum is wrong */
};

struct scene {
  struct host *host;
  struct remotes *remotes;
  struct net_listener *listener;
  struct handle handle; /* of it */
  struct line lines[LINES];
  struct conversation conversations[IDS + 1]; /* the last one: without a link */
  size_t lent;                                /* bytes of buffers */
  bool wild;                                  /* bytes were sent whose meaning is not known */
};

extern struct scene *scene;

/* The application. test_line: how many requests have not ended. connect_line: begins, or asks
 * again. */
unsigned test_line(struct line *line);
void post_one(struct line *line, bool to_send, uint32_t size, bool registered);
void close_line(struct line *line);
void accept_one(void);
void connect_line(struct line *line, unsigned instances);
void lose_memory(struct line *line, uint32_t which);
void close_listener(void);

/* The peer. conversation: what it has said on this link. say_payload: at most so many bytes more of
 * the chunk, and what follows the last one. */
struct conversation *conversation(uint64_t link);
const struct proof_key *key(void);
void greet(struct remote *remote, const struct step *step);
void say_payload(struct remote *remote, uint32_t most);
void say_chunk(struct remote *remote, const struct step *step);
void say_raw(struct remote *remote, const struct step *step);

#endif
