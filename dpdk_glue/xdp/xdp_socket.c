/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/xdp/xdp_socket.h"
#include "dpdk_glue/clock.h"
#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/kernel/netdev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  BUSY_MS = 500,         /* wait for a queue that is busy */
  LEFT_MS = 5000,        /* the same, while the interface has no XDP program */
  BUSY_PAUSE_US = 5000,  /* between two tries */
  LATE_PAUSE_US = 50000, /* the same, after BUSY_MS */
};

/* --- Memory --- */

/* A forked child gets no copy: the kernel writes to these pages. file -1: of no file. */
static uint8_t *map_memory(size_t bytes, int file)
{
  int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) {
    return NULL;
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  madvise(memory, bytes, MADV_DONTFORK);
  return memory;
}

static void set_size(struct xdp_umem *umem, unsigned queues)
{
  umem->bytes = ((size_t)queues * umem->rx_chunks + XDP_TX_CHUNKS) * umem->chunk;
}

/* Maps the chunks. The first ones belong to the queues, and the rest is for sending. */
static int map_chunks(struct xdp_umem *umem, unsigned queues)
{
  uint64_t received = (uint64_t)queues * umem->rx_chunks;
  umem->free = malloc(XDP_TX_CHUNKS * sizeof(*umem->free));
  umem->memory = umem->free ? map_memory(umem->bytes, umem->file) : NULL;
  if (!umem->memory) {
    return -ENOMEM;
  }
  for (uint32_t i = 0; i < XDP_TX_CHUNKS; i++) {
    umem->free[umem->free_count++] = (received + i) * umem->chunk;
  }
  return 0;
}

int harp_xdp_umem_make(struct xdp_umem *umem, uint32_t frame, unsigned queues, bool shared)
{
  bool small = frame <= XDP_SMALL_CHUNK - XDP_HEADROOM;
  umem->chunk = small ? XDP_SMALL_CHUNK : XDP_LARGE_CHUNK;
  umem->rx_chunks = XDP_RX_BYTES / umem->chunk / queues;
  if (umem->rx_chunks < XDP_RX_CHUNKS) {
    umem->rx_chunks = XDP_RX_CHUNKS;
  }
  set_size(umem, queues);
  if (shared) {
    umem->file = memfd_create("harp-xdp", MFD_CLOEXEC);
    if (umem->file < 0 || ftruncate(umem->file, (off_t)umem->bytes) < 0) {
      return -errno;
    }
  }
  return map_chunks(umem, queues);
}

int harp_xdp_umem_adopt(struct xdp_umem *umem, int file, uint32_t chunk, uint32_t rx_chunks,
                        unsigned queues)
{
  umem->file = file;
  umem->chunk = chunk;
  umem->rx_chunks = rx_chunks;
  set_size(umem, queues);
  return map_chunks(umem, queues);
}

void harp_xdp_umem_free(struct xdp_umem *umem)
{
  if (umem->memory) {
    munmap(umem->memory, umem->bytes);
  }
  if (umem->file >= 0) {
    close(umem->file);
  }
  free(umem->free);
  *umem = (struct xdp_umem){.file = -1};
}

/* --- Rings --- */

static int set_number(int fd, int option, uint32_t number)
{
  return setsockopt(fd, SOL_XDP, option, &number, sizeof(number)) < 0 ? -errno : 0;
}

static int map_ring(struct xdp_ring *ring, int fd, const struct xdp_ring_offset *offset,
                    uint32_t entries, size_t entry, off_t page)
{
  ring->mask = entries - 1;
  ring->map_bytes = offset->desc + entries * entry;
  ring->map = mmap(NULL, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                   page);
  if (ring->map == MAP_FAILED) {
    ring->map = NULL;
    return -errno;
  }
  uint8_t *base = ring->map;
  ring->producer = (_Atomic(uint32_t) *)(base + offset->producer);
  ring->consumer = (_Atomic(uint32_t) *)(base + offset->consumer);
  ring->flags = (const _Atomic(uint32_t) *)(base + offset->flags);
  ring->entries = base + offset->desc;
  return 0;
}

static uint32_t power_of_two(uint32_t least)
{
  uint32_t power = 1;
  while (power < least) {
    power *= 2;
  }
  return power;
}

static uint32_t ring_in(const struct xdp_umem *umem) { return power_of_two(umem->rx_chunks); }

static uint32_t ring_out(void) { return power_of_two(XDP_TX_CHUNKS); }

static int make_rings(const struct xdp_socket *xsk, const struct xdp_umem *umem)
{
  const uint32_t in = ring_in(umem), out = ring_out();
  int fd = xsk->fd, rc = set_number(fd, XDP_UMEM_FILL_RING, in);
  if (rc == 0) {
    rc = set_number(fd, XDP_UMEM_COMPLETION_RING, out);
  }
  if (rc == 0) {
    rc = set_number(fd, XDP_RX_RING, in);
  }
  if (rc == 0) {
    rc = set_number(fd, XDP_TX_RING, out);
  }
  return rc;
}

static int map_rings(struct xdp_socket *xsk, const struct xdp_umem *umem)
{
  const uint32_t in = ring_in(umem), out = ring_out();
  struct xdp_mmap_offsets offsets;
  socklen_t length = sizeof(offsets);
  int fd = xsk->fd, rc = 0;
  if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) < 0) {
    return -errno;
  }
  rc = map_ring(&xsk->fill, fd, &offsets.fr, in, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
  if (rc == 0) {
    rc = map_ring(&xsk->completion, fd, &offsets.cr, out, sizeof(uint64_t),
                  XDP_UMEM_PGOFF_COMPLETION_RING);
  }
  if (rc == 0) {
    rc = map_ring(&xsk->rx, fd, &offsets.rx, in, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
  }
  if (rc == 0) {
    rc = map_ring(&xsk->tx, fd, &offsets.tx, out, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
  }
  return rc;
}

static void give_chunks(struct xdp_socket *xsk, const struct xdp_umem *umem, unsigned queue)
{
  uint64_t from = (uint64_t)queue * umem->rx_chunks;
  for (uint32_t i = 0; i < umem->rx_chunks; i++) {
    *xdp_address(&xsk->fill, xsk->fill.mine++) = (from + i) * umem->chunk;
  }
  xdp_ring_submit(&xsk->fill);
}

/* --- Sockets --- */

static int register_memory(const struct xdp_socket *xsk, const struct xdp_umem *umem)
{
  struct xdp_umem_reg memory = {
      .addr = (uint64_t)(uintptr_t)umem->memory,
      .len = umem->bytes,
      .chunk_size = umem->chunk,
  };
  return setsockopt(xsk->fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof(memory)) < 0 ? -errno : 0;
}

/* Sockets that share memory also share the first one's mode. */
static int try_bind(const struct xdp_socket *xsk, const struct xdp_socket *first, int ifindex,
                    unsigned queue, uint16_t flags)
{
  struct sockaddr_xdp address = {
      .sxdp_family = AF_XDP,
      .sxdp_flags = first ? XDP_SHARED_UMEM : flags | XDP_USE_NEED_WAKEUP,
      .sxdp_ifindex = (uint32_t)ifindex,
      .sxdp_queue_id = queue,
      .sxdp_shared_umem_fd = first ? (uint32_t)first->fd : 0,
  };
  return bind(xsk->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
}

/* The kernel frees the queue of a closed socket later, under the RTNL lock. It detaches the program
 * of an ended process first. A HARP process that is alive has a program attached. */
static int try_while_busy(const struct xdp_socket *xsk, const struct xdp_socket *first, int ifindex,
                          unsigned queue, uint16_t flags, int wait_ms)
{
  int64_t began = harp_monotonic_ms();
  for (;;) {
    int rc = try_bind(xsk, first, ifindex, queue, flags);
    int64_t waited = harp_monotonic_ms() - began;
    bool late = waited >= BUSY_MS;
    if (rc != -EBUSY || waited >= wait_ms || (late && !harp_netdev_lacks_program(ifindex))) {
      return rc;
    }
    usleep(late ? LATE_PAUSE_US : BUSY_PAUSE_US); /* each try takes the lock, too */
  }
}

/* Tries the ways from the fastest on. Frames of several buffers need Linux 6.6, and in zero-copy
 * mode a driver that knows them. */
static int bind_best(struct xdp_socket *xsk, const struct xdp_socket *first, int ifindex,
                     unsigned queue, enum xdp_mode mode, int wait_ms)
{
  static const struct {
    enum xdp_mode mode;
    uint16_t flags;
  } ways[] = {
      {XDP_MODE_ZEROCOPY, XDP_ZEROCOPY | XDP_USE_SG},
      {XDP_MODE_ZEROCOPY, XDP_ZEROCOPY},
      {XDP_MODE_COPY, XDP_COPY | XDP_USE_SG},
      {XDP_MODE_COPY, XDP_COPY},
  };
  int rc = -EINVAL;
  for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
    if (mode != XDP_MODE_AUTO && mode != ways[i].mode) {
      continue;
    }
    rc = try_while_busy(xsk, first, ifindex, queue, ways[i].flags, wait_ms);
    if (rc == 0) {
      xsk->several = first ? first->several : ways[i].flags & XDP_USE_SG;
      return 0;
    }
    if (first || rc == -EBUSY || rc == -EPERM || rc == -ENODEV || rc == -ENETDOWN) {
      return rc;
    }
  }
  return rc;
}

static void read_mode(struct xdp_socket *xsk)
{
  struct xdp_options options = {0};
  socklen_t length = sizeof(options);
  getsockopt(xsk->fd, SOL_XDP, XDP_OPTIONS, &options, &length);
  xsk->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
}

int harp_xdp_socket_open(struct xdp_socket *xsk, struct xdp_umem *umem,
                         const struct xdp_socket *first, int ifindex, unsigned queue,
                         enum xdp_mode mode, const char **step)
{
  *step = "open an AF_XDP socket";
  xsk->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (xsk->fd < 0) {
    return -errno;
  }
  *step = "register memory for frames";
  int rc = first ? 0 : register_memory(xsk, umem);
  if (rc < 0) {
    return rc;
  }
  *step = "make the rings of a socket";
  rc = make_rings(xsk, umem);
  if (rc == 0) {
    rc = map_rings(xsk, umem);
  }
  if (rc < 0) {
    return rc;
  }
  give_chunks(xsk, umem, queue);
  *step = "bind a socket to a queue";
  /* The agent, which opens sockets for another process, must not keep others waiting. */
  rc = bind_best(xsk, first, ifindex, queue, mode, umem->file < 0 ? LEFT_MS : BUSY_MS);
  if (rc == 0) {
    read_mode(xsk);
  }
  return rc;
}

int harp_xdp_socket_adopt(struct xdp_socket *xsk, int fd, const struct xdp_umem *umem)
{
  xsk->fd = fd;
  int rc = map_rings(xsk, umem);
  if (rc == 0) {
    xsk->fill.mine = atomic_load_explicit(xsk->fill.producer, memory_order_acquire);
  }
  return rc;
}

static void unmap_ring(struct xdp_ring *ring)
{
  if (ring->map) {
    munmap(ring->map, ring->map_bytes);
  }
}

void harp_xdp_socket_close(struct xdp_socket *xsk)
{
  unmap_ring(&xsk->rx);
  unmap_ring(&xsk->tx);
  unmap_ring(&xsk->fill);
  unmap_ring(&xsk->completion);
  harp_descriptor_close(xsk->fd);
  *xsk = (struct xdp_socket){.fd = -1};
}
