/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain kernel-TCP transport behind libnccl-net-kernel.so, the baseline for HARP. It moves
 * messages like NCCL's own socket transport: a size, then the payload, over nonblocking sockets
 * that work only inside test(). It is as fast as that design allows.
 *
 * Environment: NCCL_SOCKET_IFNAME, HARP_KERNEL_NSOCKS (1, 2, 4), HARP_KERNEL_CC (a congestion
 * control), HARP_TIMEOUT_MS.
 */
#ifndef HARP_PLUGIN_KERNEL_KERNEL_H
#define HARP_PLUGIN_KERNEL_KERNEL_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/net.h"

enum {
  KERNEL_MAX_SOCKETS = 4,
  KERNEL_REQUESTS = NCCL_NET_MAX_REQUESTS, /* most outstanding requests per link; a power of two */
  KERNEL_MIN_SLICE = 64 * 1024,            /* bytes; the smallest part that gets its own socket */
  KERNEL_PEER_NAME = INET_ADDRSTRLEN + 8,
};

/* Set by the first init, constant afterwards. */
struct kernel_settings {
  char interface[IF_NAMESIZE];
  struct in_addr address;
  int sockets;         /* per link */
  char congestion[16]; /* "": the system's default */
  int timeout_ms;      /* a peer that is silent for this time is lost */
};

extern struct kernel_settings kernel_settings;

/* A part of a message that one socket carries. */
struct kernel_slice {
  size_t offset, length, moved; /* bytes */
};

/* A message. It is in slot sequence % KERNEL_REQUESTS of its link. */
struct net_request {
  struct net_link *link;
  uint64_t sequence;
  uint8_t *data;
  size_t size;     /* a receive's capacity until the header has arrived */
  uint32_t header; /* the size on the wire, little-endian */
  uint32_t header_moved;
  bool sliced;          /* size is final and the slices are set */
  uint8_t first_socket; /* socket (first_socket + i) % sockets carries slice i */
  uint8_t slices;
  size_t left;   /* payload bytes still to move */
  bool finished; /* test() has reported completion */
  struct kernel_slice slice[KERNEL_MAX_SOCKETS];
};

/* Used by one progress thread at a time. */
struct net_link {
  bool sends;
  int sockets;
  int fd[KERNEL_MAX_SOCKETS]; /* -1: not open */
  int error;                  /* 0, or a negative errno: the link has failed */
  /* sequences of the oldest slot in use and of the next free one */
  uint64_t first, next;
  uint64_t at[KERNEL_MAX_SOCKETS]; /* sequence that each socket works on */
  unsigned next_socket;            /* first socket of the next message */
  char peer[KERNEL_PEER_NAME];     /* address:port, for the log */
  struct net_request request[KERNEL_REQUESTS];
};

/* Logs through NCCL's logger. Only NCCL's threads may call it. */
void kernel_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t kernel_now_ms(void);

/* Fills interface and address. 0, or -ENODEV with a line in the log. */
int kernel_find_interface(struct kernel_settings *settings);

#endif
