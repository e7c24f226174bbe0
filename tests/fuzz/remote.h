/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host that a host of host.c talks to: connections whose TCP is sound, and what is
 * said and heard over them. What HARP says is read, and has to be right: its greetings,
 * proofs, chunks and their payload, each byte in its place, whatever the answers were.
 */
#ifndef HARP_TESTS_FUZZ_REMOTE_H
#define HARP_TESTS_FUZZ_REMOTE_H

#include "tests/fuzz/host.h"

enum {
  REMOTES = 16,
  REMOTE_STREAM = 8192, /* bytes that wait until the host takes them */
  REMOTE_PORT = 90,     /* its listeners' first port */
  GREETINGS_MAX = 2 * HELLO_SIZE,
};

/* Chunks of one flow, as they come in, over all of its connections. */
struct reader {
  uint64_t link; /* 0: none */
  uint16_t flow;
  bool lied_to;   /* an answer told another number than total: what comes is not known */
  uint64_t total; /* bytes */
  uint8_t header[CHUNK_HEADER_SIZE];
  uint32_t header_size;
  struct chunk chunk;
  uint32_t left, trailer_left, crc;
};

/* A connection. */
struct remote {
  bool used;
  bool incoming; /* to us: HARP has opened it, and sends over it */
  bool timestamps;
  unsigned queue;         /* of the host's */
  uint16_t port, to_port; /* ours and the host's */
  uint32_t base;          /* sequence number of the first byte that waits in the stream */
  uint32_t waiting;       /* bytes of it */
  /* What HARP has said: greetings first. */
  uint32_t heard; /* bytes, all of them */
  uint8_t greeting[GREETINGS_MAX];
  uint32_t hello_size;
  struct reader *reader; /* once a flow of HARP's is welcome */
  bool unread;           /* nobody knows any more what comes */
  /* What we have said: the greeting, for a proof, and the chunk that is being sent. */
  struct proof_transcript proof;
  uint64_t link; /* 0: no hello yet */
  uint16_t flow;
  uint32_t greeted; /* bytes of greetings */
  uint64_t before;  /* bytes of chunks that the host took of the flow's older connections, */
  bool goes_on;     /* if it has any */
  bool left_alone;  /* another connection goes on for it */
  struct chunk chunk;
  uint32_t left, crc;
  bool in_chunk;
};

struct remotes {
  struct remote all[REMOTES];
  struct reader readers[REMOTES];
  uint16_t next_port;
  uint32_t clock; /* of timestamps */
  bool away;      /* it does not answer any more */
};

/* How bytes go. */
enum remote_choice {
  REMOTE_CHECKED = 1,  /* the device vouches for their checksums */
  REMOTE_PLACED = 2,   /* and puts them where they are expected */
  REMOTE_REVERSED = 4, /* the last segment is the first to come */
  REMOTE_UNACKED = 8,  /* nothing new is acknowledged: what was sent may be sent again */
};

/* Once, within the arena. */
struct remotes *remotes_create(void);
/* For host_create. */
void remotes_hear(unsigned queue, const struct harp_tx_frame *frame);
/* The host's end; NULL: it has none. */
struct harp_tcp *remote_tcp(const struct remote *remote);
/* Opens one to a port of the host's; in the place of a dead one if this is. false: refused. */
bool remote_open(struct remote *remote, unsigned queue, uint16_t port, bool timestamps);
/* Answers the SYN of one that HARP opens. */
void remote_answer(struct remote *remote);
/* Bytes that say takes now. */
uint32_t remote_room(const struct remote *remote);
/* Adds to the stream; what has no room is not said. */
void remote_say(struct remote *remote, const void *bytes, uint32_t length);
/* What was said over `old` and not taken by the host is said again, and a chunk goes on. false:
 * there is no room for it. */
bool remote_go_on(struct remote *remote, struct remote *old);
/* Sends what waits, in segments of at most so many bytes (0: what fits), and acknowledges
 * everything unless the choice says otherwise, with that window. */
void remote_push(struct remote *remote, uint32_t cut, uint16_t window, unsigned choice);
/* An end: flags of TCP, behind everything that the host has taken. */
void remote_end(struct remote *remote, uint8_t flags);
/* HARP's hello: the last one of this connection. false: it is not complete. */
bool remote_hello(const struct remote *remote, struct hello *hello);
/* HARP's last greeting is a welcome. */
bool remote_welcome(const struct remote *remote);
/* HARP's challenge has come, and wants a proof. */
bool remote_challenged(const struct remote *remote);
/* What follows is a flow's chunks, of which so many bytes are said to have come. */
void remote_reads(struct remote *remote, const struct hello *hello, uint64_t received);
/* The peer has said something that nobody checks: nor is what it hears from now on. */
void remote_give_up(struct remote *remote);
/* How many bytes of the flow's chunks have come. */
uint64_t remote_received(const struct hello *hello);

/* Byte `offset` and those that follow (PATTERN_PERIOD) of a message. */
const uint8_t *message_at(uint64_t message, uint64_t offset);

#endif
