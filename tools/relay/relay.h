/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay: frames that arrive on one interface leave by another, both ways,
 * with the faults that a network has. It stands between two hosts of a lab,
 * where the kernel has no netem and where AF_PACKET readers would see frames
 * before tc could spoil them.
 *
 * Whatever the hosts leave to their devices is completed here first: large TCP
 * segments are cut to the size that the sender asked for and checksums are
 * filled in, so that a fault hits what would have been a frame on a wire, and
 * a flipped byte is one that a checksum can find.
 *
 * One thread. Times are nanoseconds of CLOCK_MONOTONIC, lengths bytes.
 */
#ifndef HARP_TESTING_RELAY_H
#define HARP_TESTING_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
  RELAY_ERROR_SIZE = 256,
  RELAY_BATCH = 32,          /* frames of one system call */
  RELAY_LARGE_FRAME = 65549, /* Ethernet header and the largest IPv4 packet */
  RELAY_ALIGN = 2,           /* in front of a frame, so that its IP header is aligned */
  RELAY_HOLD_MAX = 64,       /* frames held back at a time for reordering */
  RELAY_REORDER_MIN = 3,     /* fewer than three overtakers are no reordering to TCP */
  RELAY_FLOWS = 64,          /* TCP flows of one direction whose bytes are known */
  RELAY_RANGES = 4096,       /* of a flow's bytes that came ahead of a hole */
};

/* What the relay does to each frame, in both directions. */
struct relay_spec {
  double drop;            /* probability that a frame begins a loss */
  uint32_t drop_burst;    /* frames lost in a row once a loss begins, >= 1 */
  double duplicate;       /* probability */
  double reorder;         /* probability that a frame is overtaken */
  uint32_t reorder_depth; /* by at most so many others, >= RELAY_REORDER_MIN */
  double corrupt;         /* probability that one byte is flipped */
  uint64_t delay_ns;      /* one way */
  uint64_t rate_mbps;     /* 0: no limit */
  uint32_t queue;         /* frames that wait for delay and rate; more are lost */
  uint64_t seed;
};

struct relay_counts {
  uint64_t frames_in; /* from the interface; a large segment counts once */
  uint64_t segments;  /* frames after large segments were cut */
  uint64_t passed;    /* of these, not TCP over IPv4: never spoilt */
  uint64_t dropped;
  uint64_t duplicated;
  uint64_t reordered; /* at least one later frame left before it */
  uint64_t corrupted;
  uint64_t retransmitted; /* came with payload that had come before */
  uint64_t needless;      /* left with payload that had all left before, whole and right;
                             copies that the relay made are none */
  uint64_t overflowed;    /* lost because the queue was full */
  uint64_t unusable;      /* lost because they were malformed or larger than the MTU */
  uint64_t kernel_lost;   /* lost before the relay could read them */
  uint64_t frames_out;
  uint64_t bytes_out;
};

/* A frame that waits: in the queue, or held back until others have passed. */
struct relay_frame {
  uint64_t release_ns;
  uint32_t length;
  bool spoilt; /* its receiver will drop it */
  uint8_t *data;
};

struct relay_held {
  struct relay_frame frame;
  uint32_t overtakers; /* frames that still have to pass */
  bool overtaken;
};

struct relay_flow_key {
  uint32_t from, to; /* network order, these and the ports */
  uint16_t from_port, to_port;
};

/* Bytes [begin, end), in sequence numbers. */
struct relay_range {
  uint32_t begin, end;
};

/* One direction of a TCP connection. */
struct relay_flow {
  struct relay_flow_key key;
  uint32_t first;     /* its first byte */
  uint32_t sent;      /* behind the last byte that came */
  uint32_t delivered; /* all bytes before it have left */
  uint32_t beyond_used;
  struct relay_range beyond[RELAY_RANGES]; /* also left; in order, apart from each other */
};

/* One direction: reads from `in`, writes to `out`. */
struct relay_path {
  const struct relay_spec *spec;
  const char *name;
  int in, out;        /* packet sockets */
  unsigned direction; /* 0, 1: part of the random draws */
  size_t frame_size;  /* capacity of every frame below */
  uint64_t sequence;  /* TCP frames seen: the index of the random draws */
  uint32_t burst_left;
  uint64_t line_free_ns;     /* when the rate limit lets the next frame begin */
  struct relay_frame *queue; /* ring of spec->queue entries, oldest at head */
  uint32_t head, used;
  struct relay_held held[RELAY_HOLD_MAX];
  uint32_t held_used;
  struct relay_flow *flows; /* owned */
  uint32_t flows_used, flows_next;
  void *memory; /* of all frames; owned */
  struct relay_counts counts;
};

/* relay_spec.c. "drop=0.01,reorder=0.02/30,seed=7". -EINVAL: error says which
 * key and what is allowed. */
int relay_spec_parse(struct relay_spec *spec, const char *text, char *error);

/* relay_socket.c */
int relay_socket_open(const char *interface, int *mtu, char *error);
/* Reads what waits, at most one batch, and hands it to relay_frame_complete.
 * Returns the number of frames, 0: none, or a negative errno. */
int relay_socket_receive(struct relay_path *path, uint64_t now_ns);
/* Sends frames[0..count); returns how many left, or a negative errno. */
int relay_socket_send(struct relay_path *path, const struct relay_frame *frames, int count);
uint64_t relay_socket_lost(int fd);

/* relay_frame.c. Makes of one frame, as the kernel handed it over, the frames
 * of a wire, and hands each to relay_path_add. vnet: its struct virtio_net_hdr. */
struct virtio_net_hdr;
void relay_frame_complete(struct relay_path *path, const struct virtio_net_hdr *vnet,
                          uint8_t *frame, size_t length, uint64_t now_ns);
bool relay_frame_is_tcp(const uint8_t *frame, size_t length);
/* Length of all headers of a TCP frame; 0: they are not whole. */
size_t relay_frame_tcp_headers(const uint8_t *frame, size_t length);

/* relay_flow.c. Each TCP frame that came, and each that will arrive as it was
 * sent, without copies made here: counts what was sent again. */
void relay_flow_sent(struct relay_path *path, const uint8_t *frame, size_t length);
void relay_flow_delivered(struct relay_path *path, const uint8_t *frame, size_t length);

/* relay_path.c */
int relay_path_init(struct relay_path *path, const struct relay_spec *spec, size_t frame_size);
void relay_path_free(struct relay_path *path);
/* Room for one frame behind the queue's last, to be filled and then given to
 * relay_path_add; NULL: the queue is full (counted). */
uint8_t *relay_path_room(struct relay_path *path);
void relay_path_add(struct relay_path *path, size_t length, uint64_t now_ns);
/* Sends what is due. Returns true if something left. */
bool relay_path_flush(struct relay_path *path, uint64_t now_ns);
/* When flush has something to do next; UINT64_MAX: never. */
uint64_t relay_path_deadline(const struct relay_path *path);

#endif
