/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer of a host of host.c: connections with correct TCP, and the data sent and received over
 * them. Everything that HARP sends is checked: its hellos, proofs, chunks and their payload, byte
 * by byte, whatever the answers were.
 */
#ifndef HARP_TESTS_FUZZ_REMOTE_H
#define HARP_TESTS_FUZZ_REMOTE_H

#include "tests/fuzz/host.h"

enum {
  REMOTES = 16,
  REMOTE_STREAM = 8192, /* bytes that wait for the host's window */
  REMOTE_PORT = 90,     /* first port of its listeners */
  HANDSHAKE_MAX = 2 * HELLO_SIZE,
};

/* The received chunks of one flow, over all of its connections. */
struct reader {
  uint64_t link; /* 0: none */
  uint16_t flow;
  bool content_unknown; /* a welcome had another number than total, so the content is unknown */
  uint64_t total;       /* bytes */
  uint8_t header[CHUNK_HEADER_SIZE];
  uint32_t header_size;
  struct chunk chunk;
  uint32_t left, trailer_left, crc;
};

/* A connection. */
struct remote {
  bool used;
  bool incoming; /* HARP has opened it, and sends over it */
  bool timestamps;
  unsigned queue;         /* the host's queue */
  uint16_t port, to_port; /* the peer's port and the host's */
  uint32_t base;          /* sequence number of the first waiting byte of the stream */
  uint32_t waiting;       /* waiting bytes */
  /* Data received from HARP; hellos and welcomes come first. */
  uint32_t received; /* bytes received in total */
  uint8_t handshake_in[HANDSHAKE_MAX];
  uint32_t hello_size;
  struct reader *reader; /* set after a welcome for HARP's flow */
  bool unread;           /* the content is no longer known */
  /* Data sent to HARP: the hello, for a proof, and the current chunk. */
  struct proof_transcript proof;
  uint64_t link; /* 0: no hello yet */
  uint16_t flow;
  uint32_t handshake_sent; /* sent bytes of hellos and welcomes */
  uint64_t before; /* bytes of chunks that the host received on older connections of the flow, */
  bool goes_on;    /* if there are any */
  bool left_alone; /* another connection replaces it */
  struct chunk chunk;
  uint32_t left, crc;
  bool in_chunk;
};

struct remotes {
  struct remote all[REMOTES];
  struct reader readers[REMOTES];
  uint16_t next_port;
  uint32_t clock; /* of timestamps */
  bool away;      /* it no longer answers */
};

/* Options of a push. */
enum remote_choice {
  REMOTE_CHECKED = 1,  /* the device has verified the checksums */
  REMOTE_PLACED = 2,   /* the device puts payload where it is expected */
  REMOTE_REVERSED = 4, /* sends the last segment first */
  REMOTE_UNACKED = 8,  /* acknowledges nothing new, so that the host may retransmit */
};

/* Creates the peer, once, in the arena. */
struct remotes *remotes_create(void);
/* The callback for host_create. */
void remotes_receive(unsigned queue, const struct harp_tx_frame *frame);
/* Returns the host's end; NULL: there is none. */
struct harp_tcp *remote_tcp(const struct remote *remote);
/* Opens a connection to a port of the host, and replaces a dead one. Returns false if the host
 * rejects it. */
bool remote_open(struct remote *remote, unsigned queue, uint16_t port, bool timestamps);
/* Answers the SYN of a connection that HARP opens. */
void remote_answer(struct remote *remote);
/* Returns the bytes that remote_say accepts now. */
uint32_t remote_room(const struct remote *remote);
/* Appends to the stream. Bytes without room are dropped. */
void remote_say(struct remote *remote, const void *bytes, uint32_t length);
/* Sends again the bytes of `old` that the host has not received, and continues its chunk.
 * Returns false if there is no room. */
bool remote_go_on(struct remote *remote, struct remote *old);
/* Sends waiting bytes in segments of at most `cut` bytes (0: full segments), with the given
 * window. It acknowledges everything unless choice says otherwise. */
void remote_push(struct remote *remote, uint32_t cut, uint16_t window, unsigned choice);
/* Sends a segment with these TCP flags after the bytes that the host has received. */
void remote_end(struct remote *remote, uint8_t flags);
/* Reads HARP's last hello on this connection. Returns false if it is incomplete. */
bool remote_hello(const struct remote *remote, struct hello *hello);
/* Returns true if HARP's last message is a welcome. */
bool remote_welcome(const struct remote *remote);
/* Returns true if HARP has sent a challenge and expects a proof. */
bool remote_challenged(const struct remote *remote);
/* From now on the stream contains a flow's chunks. received: bytes already received, as the peer
 * told HARP. */
void remote_reads(struct remote *remote, const struct hello *hello, uint64_t received);
/* The peer has sent unchecked data, so HARP's later data is not checked either. */
void remote_give_up(struct remote *remote);
/* Returns the received bytes of the flow's chunks. */
uint64_t remote_received(const struct hello *hello);

/* Returns PATTERN_PERIOD bytes of a message, from `offset` on. */
const uint8_t *message_at(uint64_t message, uint64_t offset);

#endif
