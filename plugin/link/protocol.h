/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between HARP hosts inside their TCP streams, and the content of NCCL's handle. All
 * integers are big-endian; sizes are fixed.
 *
 *   connector                          acceptor
 *   hello (80 bytes)          ->
 *                             <-       welcome (64 bytes), list of NICs (132 bytes)
 *   chunk header, payload, ...  ->
 *
 * With a shared key, a challenge and its answer come in between, in the same two formats:
 *
 *   hello, proof = random     ->
 *                             <-       welcome, status = challenge, proof = random
 *   hello again, proof        ->
 *                             <-       welcome, proof
 *   chunk header, payload, ...  ->
 *
 * A chunk is a part of one message. The chunks of a message may arrive over different flows and in
 * any order; each carries its offset.
 */
#ifndef HARP_PLUGIN_PROTOCOL_H
#define HARP_PLUGIN_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/flow.h"

enum {
  WIRE_VERSION_MIN = 1, /* versions that this release supports */
  WIRE_VERSION_MAX = 3,
  WIRE_VERSION_CHECKED = 2, /* the first version with checked chunk headers */
  WIRE_VERSION_NICS = 3,    /* the first version whose welcome has a list of NICs */

  TOKEN_SIZE = 16,
  PROOF_SIZE = 32, /* zero without a key */
  HANDLE_SIZE = 64,
  HANDLE_INSTANCES = 8,
  HELLO_SIZE = 80,
  WELCOME_SIZE = 64,
  NIC_LIST_ENTRIES = 16,
  NIC_LIST_SIZE = 4 + 8 * NIC_LIST_ENTRIES,
  HANDSHAKE_SIZE = WELCOME_SIZE + NIC_LIST_SIZE, /* of the longest message before the chunks */
  CHUNK_HEADER_SIZE = 24,
  CHUNK_CHECKED_HEADER_SIZE = 28,
  CHUNK_TRAILER_SIZE = 4,
};

/* The highest version that both hosts support; 0: none. */
uint16_t wire_version_common(uint16_t peer_min, uint16_t peer_max);

/*
 * NCCL's handle. Its first two bytes are never AF_INET or AF_INET6 in either byte order. So a
 * socket transport rejects a HARP handle, and HARP rejects a socket transport's. NCCL's sockets
 * look at the address only if the link has connections; see token_draw.
 *
 *   0 magic (2)   2 version min, max   4 address   8 ports (8 x 2)
 *  24 instances   25 flags   26 mtu (2)   28 token (16)   44 check (4)
 *  48 scratch of the connecting rank (8)   56 device + 1 (1), its complement (1)   58 zero
 */
enum handle_flags {
  HANDLE_KERNEL_ADDRESS = 1, /* the host's kernel answers ARP, even without the process */
};

struct handle {
  uint8_t version_min, version_max;
  uint32_t address;                 /* network order */
  uint16_t ports[HANDLE_INSTANCES]; /* host order; one per instance of the listener */
  uint8_t instances;
  uint8_t flags; /* enum handle_flags */
  uint16_t mtu;  /* this release does not use the peer's: see hello and welcome */
  uint8_t token[TOKEN_SIZE];
  unsigned device; /* of the NIC that listens; HANDLE_NO_DEVICE: the peer does not tell */
};

enum { HANDLE_NO_DEVICE = 255 };

/* Draws a random token. 0, or -EIO. NCCL's sockets read its bytes 12 to 15 as the number of a
 * link's connections, and older ones bytes 0 to 3. The number has a sign. With a negative one they
 * open the link at once, without any connection, and the rank waits for ever for its other
 * neighbour. So the highest bits of bytes 3 and 15 are 0. */
int token_draw(uint8_t token[TOKEN_SIZE]);

/* Compares tokens in constant time, so that timing reveals nothing about them. */
bool token_same(const uint8_t a[TOKEN_SIZE], const uint8_t b[TOKEN_SIZE]);

void handle_write(const struct handle *handle, uint8_t out[HANDLE_SIZE]);
/* Parses untrusted bytes. 0, or a negative errno and one line in why (size bytes): -EPROTO: not a
 * valid HARP handle; -EPROTONOSUPPORT: no common wire version. */
int handle_read(struct handle *handle, const uint8_t in[HANDLE_SIZE], char *why, uint32_t size);
/* The scratch word. The handle's check does not cover it. */
uint64_t handle_scratch(const uint8_t in[HANDLE_SIZE]);
void handle_set_scratch(uint8_t out[HANDLE_SIZE], uint64_t value);

/*
 *   0 magic (4)   4 version min (2)   6 max (2)   8 token (16)  24 link (8)
 *  32 flow (2)   34 flows (2)   36 epoch (4)   40 mtu (2)   42 flags (1)   43 zero (5)
 *  48 proof (32)
 */
enum hello_flags {
  HELLO_CHECKED = 1,        /* from version 2: every chunk has a checked header and a trailer */
  HELLO_KERNEL_ADDRESS = 2, /* as in the handle */
  HELLO_STRIPED = 4,        /* from version 3: the link is spread over NICs */
};

struct hello {
  uint16_t version_min, version_max;
  uint8_t token[TOKEN_SIZE];
  uint64_t link; /* random, the same for all flows of a link */
  uint16_t flow, flows;
  uint32_t epoch; /* of the flow: each replacement connection has a higher one */
  uint16_t mtu;
  uint8_t flags; /* enum hello_flags */
  uint8_t proof[PROOF_SIZE];
};

enum { HELLO_PROOF = 48 }; /* offset of the proof */

void hello_write(const struct hello *hello, uint8_t out[HELLO_SIZE]);
bool hello_read(struct hello *hello, const uint8_t in[HELLO_SIZE]);

/*
 *   0 magic (4)   4 version (2)   6 status (2)   8 link (8)   16 flow (2)
 *  18 mtu (2)   20 epoch (4)   24 proof (32)   56 received (8)
 *
 * A hello with an epoch above that of the flow it names is a fence. The receiver ignores the flow's
 * older connections from then on, and the welcome tells how many bytes of chunks it has received
 * over them. The sender continues from there.
 */
enum { WELCOME_CHALLENGE = 0xffff }; /* status: the connector must first prove the key */

struct welcome {
  uint16_t version;
  uint16_t status; /* 0; WELCOME_CHALLENGE; or the errno of a refusal */
  uint64_t link;
  uint16_t flow;
  uint16_t mtu;
  uint32_t epoch;    /* that of the hello; this release does not use the peer's */
  uint64_t received; /* bytes of chunks received in all earlier epochs */
  uint8_t proof[PROOF_SIZE];
};

enum { WELCOME_PROOF = 24 }; /* offset of the proof */

void welcome_write(const struct welcome *welcome, uint8_t out[WELCOME_SIZE]);
bool welcome_read(struct welcome *welcome, const uint8_t in[WELCOME_SIZE]);

/*
 *   0 count (1)   1 zero (3)
 *   then for each NIC:   0 address (4)   4 port (2)   6 device (1)   7 flags (1)
 *
 * From version 3, a welcome that accepts the hello is followed by the acceptor's NICs. Each has a
 * port on which it accepts flows of any of the process's links: flows that move there from another
 * NIC, and flows of a link that is spread over several NICs. A count of zero: there is only one
 * NIC.
 */
enum nic_flags {
  NIC_LISTENS = 1, /* it runs; else it starts when flows need it */
};

struct nic_list {
  unsigned count;
  struct nic_list_entry {
    struct harp_endpoint at;
    uint8_t device;
    uint8_t flags; /* enum nic_flags */
  } of[NIC_LIST_ENTRIES];
};

void nic_list_write(const struct nic_list *list, uint8_t out[NIC_LIST_SIZE]);
/* A count that is too large is read as the most that fits. */
void nic_list_read(struct nic_list *list, const uint8_t in[NIC_LIST_SIZE]);
/* Whether a list of NICs follows this welcome. */
bool welcome_has_nics(const struct welcome *welcome);

/*
 *   0 message (8)   8 offset (8)   16 length (4)   20 type (1)   21 flags (1)   22 zero (2)
 *
 * A checked header is followed by four bytes: its CRC32C. The trailer comes after the payload, too
 * late to keep a damaged length or offset from being used.
 */
enum chunk_type {
  CHUNK_DATA = 1,
};

enum chunk_flags {
  CHUNK_LAST = 1,    /* offset + length is the message's size */
  CHUNK_TRAILER = 2, /* four bytes of CRC32C follow the payload */
  /* The sender does not wait for its acknowledgement, which may come with a later one. */
  CHUNK_SHARES_ACK = 4,
  /* The sender waits for the acknowledgement of its last byte only. */
  CHUNK_ACK_LAST = 8,
};

struct chunk {
  uint64_t message;
  uint64_t offset;
  uint32_t length;
  uint8_t type;
  uint8_t flags;
};

void chunk_write(const struct chunk *chunk, uint8_t out[CHUNK_HEADER_SIZE]);
void chunk_read(struct chunk *chunk, const uint8_t in[CHUNK_HEADER_SIZE]);
/* Appends the CRC32C to a complete header. */
void chunk_header_seal(uint8_t header[CHUNK_CHECKED_HEADER_SIZE]);
bool chunk_header_intact(const uint8_t header[CHUNK_CHECKED_HEADER_SIZE]);
void chunk_trailer_write(uint32_t crc, uint8_t out[CHUNK_TRAILER_SIZE]);
uint32_t chunk_trailer_read(const uint8_t in[CHUNK_TRAILER_SIZE]);

#endif
