/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AF_XDP sockets (Linux, networking/af_xdp): the memory that frames lie in, and the four rings of a
 * socket.
 *
 * The memory (UMEM) is divided into chunks of equal size. A chunk belongs to the socket, to the
 * kernel while it is in a ring, or to the stack while it reads a received frame. One poller uses a
 * UMEM and its sockets, without a lock.
 */
#ifndef HARP_DPDK_GLUE_XDP_SOCKET_H
#define HARP_DPDK_GLUE_XDP_SOCKET_H

#include <linux/if_xdp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/xdp/xdp_spec.h"

/* Linux 6.6; Debian 12's headers are older. */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

enum {
  XDP_RX_BYTES = 6 << 20, /* memory for frames that wait for the poller, of all queues */
  XDP_RX_CHUNKS = 256,    /* for receiving, at least, of each queue */
  /* For sending. The largest frame of the stack in its smallest segments needs fewer. */
  XDP_TX_CHUNKS = 1024,
  XDP_HEADROOM = 256,     /* bytes in front of a received frame; the kernel's constant */
  XDP_SMALL_CHUNK = 2048, /* bytes; for frames of up to XDP_SMALL_CHUNK - XDP_HEADROOM */
  XDP_LARGE_CHUNK = 4096, /* bytes; the kernel allows no larger ones without hugepages */
  XDP_NIC_QUEUES = 64,    /* most queues of an interface */
};

/* A ring that the kernel shares. One side produces and the other one consumes. */
struct xdp_ring {
  uint32_t mask;   /* entries - 1 */
  uint32_t mine;   /* next entry of this side, before it is published */
  uint32_t theirs; /* last seen position of the other side */
  _Atomic(uint32_t) *producer, *consumer;
  const _Atomic(uint32_t) *flags; /* XDP_RING_NEED_WAKEUP */
  void *entries;                  /* uint64_t: chunk addresses; or struct xdp_desc */
  void *map;
  size_t map_bytes;
};

struct xdp_umem {
  uint8_t *memory;
  int file; /* whose pages they are, if another process opened the sockets; else -1 */
  size_t bytes;
  uint32_t chunk; /* bytes */
  uint64_t *free; /* addresses of the chunks for sending that are free; the last one is used
                   * first, because it may still be in the cache */
  uint32_t free_count;
  uint32_t rx_chunks; /* of each queue; XDP_TX_CHUNKS for sending follow them */
};

/* A received frame in several chunks, of which the stack has not got all yet; see xdp_rx.c. */
struct xdp_long {
  unsigned chunks; /* in the ring; 0: there is no such frame */
  bool begun;      /* the first chunk, which has the headers, is not one of them */
  struct harp_tcp_fields fields;
  uint8_t header[MAX_HEADERS];
  uint32_t sequence; /* of the next segment */
  uint32_t left;     /* payload bytes of the next segments */
};

struct xdp_socket {
  int fd; /* -1: none */
  bool zero_copy;
  bool several; /* frames may consist of several buffers */
  struct xdp_ring rx, fill, tx, completion;
  struct xdp_long rest;
};

/* frame: longest frame, bytes. queues: sockets that share it. shared: the memory is a file, which
 * another process can map. 0, or a negative errno. */
int harp_xdp_umem_make(struct xdp_umem *umem, uint32_t frame, unsigned queues, bool shared);
/* Maps the memory that another process made; file: its descriptor, which umem then owns, also after
 * a failure. 0, or a negative errno. */
int harp_xdp_umem_adopt(struct xdp_umem *umem, int file, uint32_t chunk, uint32_t rx_chunks,
                        unsigned queues);
void harp_xdp_umem_free(struct xdp_umem *umem);

/*
 * Opens the socket of a queue of the interface. The first socket of a UMEM registers it; the others
 * share it (first: the first socket, NULL: this is it). 0, or a negative errno; *step names the
 * call that failed. It waits for 0.5 s if another process has the queue, and for up to 5 s if that
 * process has ended, because the kernel may free the queue late.
 */
int harp_xdp_socket_open(struct xdp_socket *socket, struct xdp_umem *umem,
                         const struct xdp_socket *first, int ifindex, unsigned queue,
                         enum xdp_mode mode, const char **step);
/* Maps the rings of a socket that another process opened and bound; fd: its descriptor, which
 * socket then owns, also after a failure. 0, or a negative errno. */
int harp_xdp_socket_adopt(struct xdp_socket *socket, int fd, const struct xdp_umem *umem);
void harp_xdp_socket_close(struct xdp_socket *socket);

/* --- Rings --- */

static inline uint64_t *xdp_address(const struct xdp_ring *ring, uint32_t at)
{
  return (uint64_t *)ring->entries + (at & ring->mask);
}

static inline struct xdp_desc *xdp_desc(const struct xdp_ring *ring, uint32_t at)
{
  return (struct xdp_desc *)ring->entries + (at & ring->mask);
}

static inline bool xdp_needs_wakeup(const struct xdp_ring *ring)
{
  return atomic_load_explicit(ring->flags, memory_order_relaxed) & XDP_RING_NEED_WAKEUP;
}

/* Entries that this side may consume, at most `most`. */
static inline uint32_t xdp_ring_peek(struct xdp_ring *ring, uint32_t most)
{
  if (ring->theirs - ring->mine < most) {
    ring->theirs = atomic_load_explicit(ring->producer, memory_order_acquire);
  }
  uint32_t there = ring->theirs - ring->mine;
  return there < most ? there : most;
}

/* The other side may use all entries before `mine` again. */
static inline void xdp_ring_release(struct xdp_ring *ring)
{
  atomic_store_explicit(ring->consumer, ring->mine, memory_order_release);
}

/* Whether this side may produce count entries. */
static inline bool xdp_ring_has_room(struct xdp_ring *ring, uint32_t count)
{
  if (ring->mine + count - ring->theirs > ring->mask + 1) {
    ring->theirs = atomic_load_explicit(ring->consumer, memory_order_acquire);
  }
  return ring->mine + count - ring->theirs <= ring->mask + 1;
}

/* Publishes everything up to `mine`. */
static inline void xdp_ring_submit(struct xdp_ring *ring)
{
  atomic_store_explicit(ring->producer, ring->mine, memory_order_release);
}

#endif
