/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-flood: one attacking host beside a running job.
 *
 *   main.c       the command line
 *   args.c       the keys and values of an attack
 *   pace.c       the visitors, the rate and the report
 *   tx.c         the path to the victim: an interface, or between two wires
 *   main_loop.c  attacks from between two wires
 *   forwarder.c  forwards frames between two wires
 *   attacks.c    the table of attacks: their frames in order
 *   frames.c     builds frames and evaluates the answers
 *   rx.c         records a hello from the wire
 *
 * One thread. Integers are in host order unless stated otherwise.
 */
#ifndef HARP_TOOLS_ATTACKER_H
#define HARP_TOOLS_ATTACKER_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct forwarder;

enum {
  FLOOD_FRAME = 1536,         /* bytes; the longest frame used here */
  FLOOD_HELLO = 80,           /* bytes of HARP's hello */
  FLOOD_VISITORS = 8192,      /* concurrent connections */
  FLOOD_ANSWER_NS = 30000000, /* delay of the second frame, unless the victim answers earlier */
  FLOOD_NEXT_NS = 1000000,    /* delay between later frames */
};

/* A connection of the attacker, or one frame with a forged source. */
struct visitor {
  uint16_t port;     /* its local port */
  uint16_t step;     /* frames sent */
  bool answered;     /* a SYN-ACK has arrived */
  uint32_t seq, ack; /* next sequence number to send; next one expected */
  uint64_t due_ns;   /* time of the next frame */
};

struct flood {
  int fd; /* a packet socket; used if forwarder is NULL */
  struct forwarder *forwarder;
  uint8_t mac[6], to_mac[6];
  uint32_t from, to;            /* addresses, network order; to: the target of the current phase */
  uint32_t victim, nobody;      /* the targets of the two phases; nobody 0: only one phase */
  uint16_t port;                /* of the attacked listener */
  uint32_t peer;                /* network order; of an existing connection of the victim; */
  uint16_t peer_port, own_port; /* the peer's and the victim's port */
  uint8_t hello[FLOOD_HELLO];   /* a recorded hello; zero: none */
  uint64_t rate, ms, phase_ms;  /* frames per second; duration; length of a phase */
  uint64_t random;              /* state of the random number generator */
  uint64_t visits;              /* visitors begun so far */
  struct {
    uint64_t frames, connections, answered, resets, arp;
  } count; /* of the phases on the victim; frames: of all phases */
  struct visitor visitors[FLOOD_VISITORS];
  uint32_t by_port[65536];                           /* visitor + 1; 0: none */
  uint32_t answered[FLOOD_VISITORS], answered_count; /* visitors that may send at once */
};

/* A row of the table of attacks. frame writes the visitor's next frame and returns its bytes. In
 * an attack with `live`, the frames refer to an existing connection of the victim. */
struct attack {
  const char *name, *what;
  uint16_t steps; /* frames per visitor */
  bool live;
  size_t (*frame)(struct flood *flood, struct visitor *visitor, uint8_t *out);
};

extern const struct attack attacks[];
extern const size_t attack_count;

/* NULL: there is no attack of this name. */
const struct attack *attack_named(const char *name);

uint64_t flood_random(struct flood *flood);
/* Nanoseconds of the monotonic clock. */
uint64_t flood_now(void);
/* Reads the words KEY=VALUE up to NULL and modifies them. false: printed the error. */
bool flood_from_args(struct flood *flood, const struct attack *attack, char **args);
/* Prints "ready", attacks until the end or flood_stop, and reports. 0, or a negative errno. */
int flood_run(struct flood *flood, const struct attack *attack);
extern volatile sig_atomic_t flood_stop; /* number of the received signal */
bool read_number(const char *text, uint64_t most, uint64_t *out);

/* Returns the number of sent frames, or a negative errno. A full wire loses frames. */
int tx_send(struct flood *flood, const struct iovec *frames, unsigned count);
/* Processes the frames that have arrived. */
void tx_open(struct flood *flood);
/* Waits until that time, ns. Between wires it forwards frames meanwhile. */
void tx_wait(struct flood *flood, uint64_t until);

/* A TCP segment. options: a multiple of four bytes. */
struct segment {
  uint32_t source; /* network order */
  uint16_t source_port, port;
  uint32_t seq, ack;
  uint8_t flags; /* of netinet/tcp.h */
  bool closed;   /* the window is 0 */
  const void *options, *payload;
  size_t option_bytes, payload_bytes;
};

/* Each returns the frame's bytes. out has room for FLOOD_FRAME. */
size_t frame_tcp(const struct flood *flood, const struct segment *segment, uint8_t *out);
/* Builds an IP fragment of that segment's packet: its first 64 bytes for offset 0, else the
 * bytes from `offset` on. Both have the more-fragments flag. */
size_t frame_fragment(const struct flood *flood, const struct segment *segment, uint16_t id,
                      uint16_t offset, uint8_t *out);
/* Builds an ICMP "fragmentation needed" message about a segment from the victim to its peer. */
size_t frame_too_big(const struct flood *flood, uint32_t source, uint32_t seq, uint16_t mtu,
                     uint8_t *out);
/* operation: of net/if_arp.h. target: network order. */
size_t frame_arp(const uint8_t *from_mac, const uint8_t *to_mac, uint16_t operation,
                 uint32_t sender, uint32_t target, uint8_t *out);

/* Processes a received frame: answers ARP requests for the attacker's address, and records the
 * visitors that the victim has answered. */
void frame_seen(struct flood *flood, const uint8_t *frame, size_t length);

/* Opens a packet socket on the interface and stores its MAC address. -1: printed the error. */
int flood_open(const char *interface, uint8_t mac[6]);

/* Prints a hello to the address, with the frame's addresses. Returns false if the frame contains
 * none. */
bool hello_seen(const uint8_t *frame, size_t length, uint32_t address);

/* Forwards between two wires until standard input ends, and runs the attacks that it names.
 * address: of the victim, network order. Returns the exit status. */
int forward_frames(const char *victim, const char *other, uint32_t address);

/* Waits for a hello to this address (network order) and prints it with its addresses. Returns
 * the exit status. */
int rx(const char *interface, uint32_t address, unsigned seconds);

#endif
