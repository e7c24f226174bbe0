/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay between two hosts of a lab. Frames that arrive on one interface leave by the other, in
 * both directions, with the faults of a network. The lab needs it, because its kernel has no netem,
 * and AF_PACKET readers would see frames before tc could impair them.
 *
 * The relay first completes the work that hosts leave to their devices. It cuts large TCP segments
 * to the size that the sender requested, and fills in checksums. So a fault hits a frame as on a
 * wire, and a checksum can detect a flipped byte.
 *
 * One thread. Times are nanoseconds of CLOCK_MONOTONIC, lengths are bytes.
 */
#ifndef HARP_TESTING_RELAY_H
#define HARP_TESTING_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
  RELAY_ERROR_SIZE = 256,
  RELAY_BATCH = 32,          /* frames per system call */
  RELAY_LARGE_FRAME = 65549, /* Ethernet header and the largest IPv4 packet */
  RELAY_ALIGN = 2,           /* bytes before a frame, so that its IP header is aligned */
  RELAY_HOLD_MAX = 64,       /* most frames held back for reordering */
  RELAY_REORDER_MIN = 3,     /* TCP ignores reordering by fewer than three frames */
  RELAY_FLOWS = 64,          /* tracked TCP flows per direction */
  RELAY_RANGES = 4096,       /* ranges of a flow's bytes beyond a hole */
};

/* The relay's treatment of each frame, in both directions. */
struct relay_spec {
  double drop;            /* probability that a loss begins at a frame */
  uint32_t drop_burst;    /* consecutive frames per loss, >= 1 */
  double duplicate;       /* probability */
  double reorder;         /* probability that a frame is overtaken */
  uint32_t reorder_depth; /* most frames that overtake it, >= RELAY_REORDER_MIN */
  double corrupt;         /* probability that one byte is flipped */
  uint64_t delay_ns;      /* one way */
  uint64_t rate_mbps;     /* 0: no limit */
  uint32_t queue;         /* most frames that wait for delay and rate; more are lost */
  uint64_t seed;
};

struct relay_counts {
  uint64_t frames_in; /* received on the interface; a large segment counts once */
  uint64_t segments;  /* frames after the cutting of large segments */
  uint64_t passed;    /* segments that are not TCP over IPv4; they are never impaired */
  uint64_t dropped;
  uint64_t duplicated;
  uint64_t reordered; /* at least one later frame left first */
  uint64_t corrupted;
  uint64_t retransmitted; /* arrived with payload that had arrived before */
  /* Left with payload that had left completely and undamaged before. The relay's own duplicates
   * do not count. */
  uint64_t needless;
  uint64_t overflowed;  /* lost because the queue was full */
  uint64_t unusable;    /* lost because they were malformed or larger than the MTU */
  uint64_t kernel_lost; /* lost before the relay could read them */
  uint64_t frames_out;
  uint64_t bytes_out;
};

/* A waiting frame: in the queue, or held back for reordering. */
struct relay_frame {
  uint64_t release_ns;
  uint32_t length;
  bool corrupted; /* the receiver will drop it */
  uint8_t *data;
};

struct relay_held {
  struct relay_frame frame;
  uint32_t overtakers; /* frames that must still pass it */
  bool overtaken;
};

struct relay_flow_key {
  uint32_t from, to; /* network order, as are the ports */
  uint16_t from_port, to_port;
};

/* Bytes [begin, end), in sequence numbers. */
struct relay_range {
  uint32_t begin, end;
};

/* One direction of a TCP connection. */
struct relay_flow {
  struct relay_flow_key key;
  uint32_t first;     /* its first sequence number */
  uint32_t sent;      /* end of the highest payload that arrived */
  uint32_t delivered; /* all bytes below it have left */
  uint32_t beyond_used;
  /* ranges above it that have also left; sorted and disjoint */
  struct relay_range beyond[RELAY_RANGES];
};

/* One direction: reads from `in`, writes to `out`. */
struct relay_path {
  const struct relay_spec *spec;
  const char *name;
  int in, out;        /* packet sockets */
  unsigned direction; /* 0 or 1; an input of the random draws */
  size_t frame_size;  /* capacity of each frame below */
  uint64_t sequence;  /* TCP frames seen; the index of the random draws */
  uint32_t burst_left;
  uint64_t line_free_ns;     /* when the rate limit allows the next frame to begin */
  struct relay_frame *queue; /* ring of spec->queue entries, oldest at head */
  uint32_t head, used;
  struct relay_held held[RELAY_HOLD_MAX];
  uint32_t held_used;
  struct relay_flow *flows; /* owned */
  uint32_t flows_used, flows_next;
  void *memory; /* of all frames; owned */
  struct relay_counts counts;
};

/* relay_spec.c. Parses "drop=0.01,reorder=0.02/30,seed=7". -EINVAL: error names the key and the
 * allowed values. */
int relay_spec_parse(struct relay_spec *spec, const char *text, char *error);

/* relay_socket.c */
int relay_socket_open(const char *interface, int *mtu, char *error);
/* Reads at most one batch and gives it to relay_frame_complete. Returns the number of frames, 0
 * if none waits, or a negative errno. */
int relay_socket_receive(struct relay_path *path, uint64_t now_ns);
/* Sends frames[0..count). Returns the number of sent frames, or a negative errno. */
int relay_socket_send(struct relay_path *path, const struct relay_frame *frames, int count);
uint64_t relay_socket_lost(int fd);

/* relay_frame.c. Turns a frame from the kernel into frames of a wire and gives each to
 * relay_path_add. vnet: its struct virtio_net_hdr. */
struct virtio_net_hdr;
void relay_frame_complete(struct relay_path *path, const struct virtio_net_hdr *vnet,
                          uint8_t *frame, size_t length, uint64_t now_ns);
bool relay_frame_is_tcp(const uint8_t *frame, size_t length);
/* Returns the length of all headers of a TCP frame; 0: they are incomplete. */
size_t relay_frame_tcp_headers(const uint8_t *frame, size_t length);

/* relay_flow.c. Both count retransmissions. The caller calls the first for each received TCP
 * frame, the second for each one that will arrive undamaged, without the relay's duplicates. */
void relay_flow_sent(struct relay_path *path, const uint8_t *frame, size_t length);
void relay_flow_delivered(struct relay_path *path, const uint8_t *frame, size_t length);

/* relay_path.c */
int relay_path_init(struct relay_path *path, const struct relay_spec *spec, size_t frame_size);
void relay_path_free(struct relay_path *path);
/* Returns room for one frame after the queue's last one. The caller fills it and calls
 * relay_path_add. NULL: the queue is full (counted). */
uint8_t *relay_path_room(struct relay_path *path);
void relay_path_add(struct relay_path *path, size_t length, uint64_t now_ns);
/* Sends the due frames. Returns true if a frame left. */
bool relay_path_flush(struct relay_path *path, uint64_t now_ns);
/* Time when flush has work next; UINT64_MAX: never. */
uint64_t relay_path_deadline(const struct relay_path *path);

#endif
