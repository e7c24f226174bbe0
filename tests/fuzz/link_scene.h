/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that the files of the link fuzzer share: one scene, in which an application
 * (link_application.c) has links to a peer (link_peer.c).
 */
#ifndef HARP_TESTS_FUZZ_LINK_SCENE_H
#define HARP_TESTS_FUZZ_LINK_SCENE_H

#include "plugin/link/crc32c.h"
#include "tests/fuzz/remote.h"
#include "tests/sim/books.h"

enum {
  LINES = 4,
  IDS = 4,          /* ids of incoming links */
  CHUNK_SIZE = 700, /* of HARP's chunks; the messages here are small */
  UNTOUCHED = 0xee, /* fills a receive's buffer */
};

enum handshake_choice {
  ODD_WORD = 1,   /* a wrong token; a status; */
  WITH_EPOCH = 2, /* a hello's epoch; a welcome: any `received` */
  WRONG_BYTE = 4,
  WRONG_KEY = 8,
  CUT_OFF = 16,
  ODD_VERSIONS = 32,
  UNASKED = 64, /* without a challenge, or without a proof */
};

enum chunk_choice {
  ODD_MESSAGE = 1,
  ODD_OFFSET = 2,
  ODD_LENGTH = 4,
  HEADER_ALONE = 8,
  INTERRUPTS = 16, /* the previous chunk is incomplete */
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
  uint8_t *data;               /* NULL: returned to the application */
  uint32_t size;
  uint64_t message;
  struct net_region *region;
};

/* A link of the application. */
struct line {
  struct net_link *link; /* NULL: none, or connecting */
  bool connecting;
  uint8_t handle[HANDLE_SIZE];
  uint64_t posted;
  struct post posts[LINK_REQUESTS];
};

/* The peer's state of a link. */
struct conversation {
  uint64_t id, message, offset;
  bool odd;           /* chunks are out of order */
  uint64_t corrupted; /* 1 + number of a message with a chunk that has a wrong checksum */
};

struct scene {
  struct host *host;
  struct remotes *remotes;
  struct net_listener *listener;
  struct handle handle; /* of the listener */
  struct line lines[LINES];
  struct conversation conversations[IDS + 1]; /* the last one has no link */
  size_t posted_bytes;                        /* bytes of posted buffers */
  bool wild;                                  /* data of unknown meaning was sent */
};

extern struct scene *scene;

/* The application. test_line returns the number of requests that have not ended. connect_line
 * begins a connect, or calls it again. */
unsigned test_line(struct line *line);
void post_one(struct line *line, bool to_send, uint32_t size, bool registered);
void close_line(struct line *line);
void accept_one(void);
void connect_line(struct line *line, unsigned instances);
void deregister(struct line *line, uint32_t which);
void close_listener(void);

/* The peer. conversation returns its state of this link. say_payload sends up to `most` more
 * bytes of the chunk, and the trailer after the last one. */
struct conversation *conversation(uint64_t link);
const struct proof_key *key(void);
void say_hello_or_welcome(struct remote *remote, const struct step *step);
void say_payload(struct remote *remote, uint32_t most);
void say_chunk(struct remote *remote, const struct step *step);
void say_raw(struct remote *remote, const struct step *step);

#endif
