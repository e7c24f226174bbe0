/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain kernel-TCP transport behind libnccl-net-kernel.so: what HARP is
 * measured against. It moves messages as NCCL's own socket transport does: a
 * size, then the payload, over nonblocking sockets that are worked only inside
 * test(). It is kept as fast as that design allows.
 *
 * Environment: NCCL_SOCKET_IFNAME, HARP_KERNEL_NSOCKS (1, 2, 4),
 * HARP_KERNEL_CC (a congestion control), HARP_TIMEOUT_MS.
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
  KERNEL_REQUESTS = NCCL_NET_MAX_REQUESTS, /* outstanding on a link; a power of two */
  KERNEL_MIN_SLICE = 64 * 1024,            /* bytes; smaller parts are not worth a socket */
  KERNEL_PEER_NAME = INET_ADDRSTRLEN + 8,
};

/* Set by the first init, constant afterwards. */
struct kernel_settings {
  char interface[IF_NAMESIZE];
  struct in_addr address;
  int sockets;         /* per link */
  char congestion[16]; /* "": the system's default */
  int timeout_ms;      /* a peer silent for so long is lost */
};

extern struct kernel_settings kernel_settings;

/* A part of a message that travels over one socket. */
struct kernel_slice {
  size_t offset, length, moved; /* bytes */
};

/* A message. Slot number sequence % KERNEL_REQUESTS of its link. */
struct net_request {
  struct net_link *link;
  uint64_t sequence;
  uint8_t *data;
  size_t size;     /* a receive's capacity until the header has come */
  uint32_t header; /* the size as it travels, little-endian */
  uint32_t header_moved;
  bool sliced;          /* size is final, slices are set */
  uint8_t first_socket; /* slice i travels over socket (first_socket + i) % sockets */
  uint8_t slices;
  size_t left;   /* payload bytes still to move */
  bool finished; /* test() has reported it */
  struct kernel_slice slice[KERNEL_MAX_SOCKETS];
};

/* Used by one progress thread at a time. */
struct net_link {
  bool sends;
  int sockets;
  int fd[KERNEL_MAX_SOCKETS];      /* -1: not open */
  int error;                       /* negative errno: the link has failed */
  uint64_t first, next;            /* sequences of the oldest slot in use and the next free */
  uint64_t at[KERNEL_MAX_SOCKETS]; /* sequence that each socket works on */
  unsigned next_socket;            /* where the next message's slices begin */
  char peer[KERNEL_PEER_NAME];     /* address:port, for the log */
  struct net_request request[KERNEL_REQUESTS];
};

/* Speaks through NCCL's logger; from NCCL's threads only. */
void kernel_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void kernel_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t kernel_now_ms(void);

/* Fills interface and address. 0, or -ENODEV with a line in the log. */
int kernel_find_interface(struct kernel_settings *settings);

/* A nonblocking TCP socket with every option of settings; its descriptor, or
 * a negative errno with a line in the log. */
int kernel_socket(const struct kernel_settings *settings);

struct net_link *kernel_link_new(int sockets, bool sends);
void kernel_link_free(struct net_link *link);

#endif
