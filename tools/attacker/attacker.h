/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-flood: one host that means no good, beside a job that runs.
 *
 *   main.c     what to do
 *   words.c    the same in words: keys and values
 *   pace.c     visitors and their turns, the report
 *   road.c     the way to the victim: an interface, or between two wires
 *   middle.c   between two wires
 *   attacks.c  the table of attacks: which frames, in which order
 *   frames.c   frames as they go on the wire, and what the answers say
 *   hear.c     a hello, recorded from the wire
 *
 * One thread; all integers are in host order unless it says otherwise.
 */
#ifndef HARP_TESTING_FLOOD_H
#define HARP_TESTING_FLOOD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct forwarder;

enum {
  FLOOD_FRAME = 1536,         /* bytes; no frame here is longer */
  FLOOD_HELLO = 80,           /* bytes of HARP's first greeting */
  FLOOD_VISITORS = 8192,      /* connections under way at once */
  FLOOD_ANSWER_NS = 30000000, /* behind a first frame, unless the victim answers before */
  FLOOD_NEXT_NS = 1000000,    /* behind each later one */
};

/* A connection of the attacker's, or one frame that pretends to belong to one. */
struct visitor {
  uint16_t port;     /* its own */
  uint16_t step;     /* frames sent */
  bool answered;     /* a SYN-ACK has come */
  uint32_t seq, ack; /* next to send, next to expect */
  uint64_t due_ns;   /* when the next frame is sent */
};

struct flood {
  int fd; /* a packet socket; or, if not NULL: */
  struct forwarder *forwarder;
  uint8_t mac[6], to_mac[6];
  uint32_t from, to;            /* addresses, network order; to: of this phase */
  uint32_t victim, nobody;      /* the phases' addresses; nobody 0: there is one phase */
  uint16_t port;                /* of the listener that is attacked */
  uint32_t peer;                /* network order; of a connection that the victim has; */
  uint16_t peer_port, own_port; /* the peer's end and the victim's */
  uint8_t hello[FLOOD_HELLO];   /* recorded; zero: none */
  uint64_t rate, ms, phase_ms;  /* frames a second; how long; before the address changes */
  uint64_t random;              /* state of the generator */
  uint64_t visits;              /* begun so far */
  struct {
    uint64_t frames, connections, answered, resets, arp;
  } count; /* of the phases on the victim; frames of all */
  struct visitor visitors[FLOOD_VISITORS];
  uint32_t by_port[65536];                           /* visitor + 1; 0: none */
  uint32_t answered[FLOOD_VISITORS], answered_count; /* visitors whose turn it is at once */
};

/* A row of the table of attacks. frame writes the visitor's next frame and returns its
 * bytes. In an attack with `live`, frames name a connection that the victim has. */
struct attack {
  const char *name, *what;
  uint16_t steps; /* frames of a visitor */
  bool live;
  size_t (*frame)(struct flood *flood, struct visitor *visitor, uint8_t *out);
};

extern const struct attack attacks[];
extern const size_t attack_count;

/* NULL: there is no such. */
const struct attack *attack_named(const char *name);

uint64_t flood_random(struct flood *flood);
/* ns, of the monotonic clock. */
uint64_t flood_now(void);
/* Reads words KEY=VALUE, up to NULL, and writes over them. false: said what is wrong. */
bool flood_from_args(struct flood *flood, const struct attack *attack, char **args);
/* Says "ready" and attacks as told, until flood_stop at most, and reports. 0, or negative errno. */
int flood_run(struct flood *flood, const struct attack *attack);
extern volatile sig_atomic_t flood_stop; /* a signal's number */
bool read_number(const char *text, uint64_t most, uint64_t *out);

/* How many frames went, or negative errno. What finds a full wire is lost. */
int tx_send(struct flood *flood, const struct iovec *frames, unsigned count);
/* Takes notice of what has come. */
void tx_open(struct flood *flood);
/* Until that time, ns; between wires frames pass meanwhile. */
void tx_wait(struct flood *flood, uint64_t until);

/* A TCP segment. options: a multiple of four bytes. */
struct segment {
  uint32_t source; /* network order */
  uint16_t source_port, port;
  uint32_t seq, ack;
  uint8_t flags; /* of netinet/tcp.h */
  bool closed;   /* the window */
  const void *options, *payload;
  size_t option_bytes, payload_bytes;
};

/* Each returns the frame's bytes; out has room for FLOOD_FRAME. */
size_t frame_tcp(const struct flood *flood, const struct segment *segment, uint8_t *out);
/* A piece of that segment's packet: its first 64 bytes for offset 0, else what lies behind
 * `offset` bytes, and there is more to come in either case. */
size_t frame_fragment(const struct flood *flood, const struct segment *segment, uint16_t id,
                      uint16_t offset, uint8_t *out);
/* "Fragmentation needed" about a segment from the victim to its peer. */
size_t frame_too_big(const struct flood *flood, uint32_t source, uint32_t seq, uint16_t mtu,
                     uint8_t *out);
/* operation: of net/if_arp.h. target: network order. */
size_t frame_arp(const uint8_t *from_mac, const uint8_t *to_mac, uint16_t operation,
                 uint32_t sender, uint32_t target, uint8_t *out);

/* Takes notice of a frame that came: answers questions for its own address, and learns which
 * visitors the victim has answered. */
void frame_seen(struct flood *flood, const uint8_t *frame, size_t length);

/* A packet socket on the interface; its hardware address in mac. -1: said why. */
int flood_open(const char *interface, uint8_t mac[6]);

/* Prints the hello that a frame carries to the address, with the frame's addresses; false:
 * it carries none. */
bool hello_seen(const uint8_t *frame, size_t length, uint32_t address);

/* Sits between two wires until standard input ends, and attacks as that says. address: of the
 * victim, network order. Returns the exit status. */
int forward_frames(const char *victim, const char *other, uint32_t address);

/* Waits for a hello to this address (network order) and prints it with its addresses.
 * Returns the exit status. */
int rx(const char *interface, uint32_t address, unsigned seconds);

#endif
