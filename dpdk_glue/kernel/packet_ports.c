/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/kernel/packet_ports.h"

#include "dpdk_glue/kernel/kernel_ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  BLOCK = 16,       /* ports in the first block; each later block doubles the total */
  BLOCK_MOST = 64,  /* largest block, which keeps the filter short */
  BLOCK_TRIES = 64, /* blocks to try until one has a port for the queue */
};

void harp_packet_ports_init(struct packet_ports *ports, bool shared, uint32_t address,
                            unsigned queues, uint16_t first, uint16_t last)
{
  memset(ports, 0, sizeof(*ports));
  ports->shared = shared;
  ports->address = address;
  ports->queues = queues;
  ports->first = first;
  ports->last = last;
  if (!shared) {
    harp_local_ports_init(&ports->pool, first, last);
    if (first)
      ports->ranges[ports->range_count++] = (struct packet_range){first, last};
    return;
  }
  /* Any port is possible, because the kernel's range can change at any time. */
  harp_local_ports_init(&ports->pool, first ? first : 1, first ? last : 65535);
  harp_local_ports_take_all(&ports->pool);
}

void harp_packet_ports_forget(const struct packet_ports *ports)
{
  for (unsigned i = 0; i < ports->listener_count; i++)
    close(ports->listeners[i]);
}

void harp_packet_ports_close(struct packet_ports *ports)
{
  harp_packet_ports_forget(ports);
  free(ports->listeners);
  ports->listeners = NULL;
  ports->listener_count = 0;
}

static int room_for_listener(struct packet_ports *ports)
{
  if (ports->listener_count < ports->listener_room)
    return 0;
  unsigned room = ports->listener_room ? ports->listener_room * 2 : BLOCK;
  int *grown = malloc(room * sizeof(*grown)), *old = ports->listeners;
  if (!grown)
    return -ENOMEM;
  if (old)
    memcpy(grown, old, ports->listener_count * sizeof(*grown));
  ports->listeners = grown; /* the array is always valid, because a fork may happen now */
  ports->listener_room = room;
  free(old);
  return 0;
}

/* Newer kernels require CAP_NET_ADMIN for a filter on a TCP socket. IP_MINTTL needs no
 * privilege: the kernel silently drops every packet with a TTL below 255 (RFC 5082). Hosts start
 * with a lower TTL, so this covers their segments. */
static int deafen(int fd)
{
  int least = 255;
  if (setsockopt(fd, IPPROTO_IP, IP_MINTTL, &least, sizeof(least)) < 0)
    return -errno;
  int rc = harp_packet_filter_deafen(fd);
  return rc == -EPERM ? 0 : rc;
}

/* Sets the filters before bind, so the kernel never answers a connection request. The socket
 * must listen, because the kernel resets segments to a port without a listener. */
static int listen_deaf(uint32_t address, uint16_t *port)
{
  struct sockaddr_in name = {
      .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = address};
  socklen_t length = sizeof(name);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -errno;
  int rc = deafen(fd);
  if (rc == 0 && (bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 || listen(fd, 0) < 0 ||
                  getsockname(fd, (struct sockaddr *)&name, &length) < 0))
    rc = -errno;
  if (rc < 0) {
    close(fd);
    return rc;
  }
  *port = ntohs(name.sin_port);
  return fd;
}

/* Holds *port; if *port is 0, holds a port that the kernel grants and stores its number. */
static int hold(struct packet_ports *ports, uint16_t *port)
{
  int rc = room_for_listener(ports);
  int fd = rc < 0 ? rc : listen_deaf(ports->address, port);
  if (fd < 0)
    return fd;
  ports->listeners[ports->listener_count++] = fd;
  harp_local_ports_add(&ports->pool, *port);
  return 0;
}

static void add_range(struct packet_ports *ports, uint16_t first, uint16_t last)
{
  for (unsigned i = 0; i < ports->range_count; i++) {
    struct packet_range *range = &ports->ranges[i];
    if (range->last + 1 == first) {
      range->last = last;
      return;
    }
    if (last + 1 == range->first) {
      range->first = first;
      return;
    }
  }
  ports->ranges[ports->range_count++] = (struct packet_range){first, last};
}

/* Holds up to count consecutive free ports from first on. After first it takes only ports that
 * the kernel could assign automatically; kernel NULL: any port. */
static int hold_block(struct packet_ports *ports, uint16_t first, unsigned count,
                      const struct harp_kernel_ports *kernel)
{
  if (ports->range_count == PACKET_FILTER_RANGES)
    return -EADDRINUSE;
  int rc = hold(ports, &first);
  if (rc < 0)
    return rc;
  uint16_t last = first;
  uint16_t limit = ports->last ? ports->last : 65535;
  while (last < limit && last - first + 1u < count) {
    uint16_t next = (uint16_t)(last + 1);
    if (kernel && !harp_kernel_ports_offered(kernel, next))
      break;
    if (hold(ports, &next) < 0)
      break;
    last = next;
  }
  add_range(ports, first, last);
  return 0;
}

/* A held port cannot be bound again, so there is no need to try. */
static bool is_held(const struct packet_ports *ports, uint16_t port)
{
  for (unsigned i = 0; i < ports->range_count; i++) {
    if (ports->ranges[i].first <= port && port <= ports->ranges[i].last)
      return true;
  }
  return false;
}

/* The kernel grants the first port of the block. */
static int hold_granted_block(struct packet_ports *ports, unsigned count)
{
  struct harp_kernel_ports kernel;
  harp_kernel_ports_read(&kernel);
  return hold_block(ports, 0, count, &kernel);
}

/* HARP searches a configured range itself. It starts at a random place, so that several
 * processes rarely collide. It ignores ip_local_reserved_ports here, because the administrator
 * has given this range to HARP. */
static int hold_any_block(struct packet_ports *ports, unsigned count)
{
  if (!ports->first)
    return hold_granted_block(ports, count);
  unsigned span = ports->last - ports->first + 1u;
  uint32_t start = 0;
  if (getrandom(&start, sizeof(start), GRND_NONBLOCK) != sizeof(start))
    start = 0;
  for (unsigned i = 0; i < span; i++) {
    uint16_t first = (uint16_t)(ports->first + (start % span + i) % span);
    int rc = is_held(ports, first) ? -EADDRINUSE : hold_block(ports, first, count, NULL);
    if (rc != -EADDRINUSE)
      return rc;
  }
  return -EADDRINUSE;
}

/* A block has at least one port for every queue. */
static unsigned block_size(const struct packet_ports *ports)
{
  unsigned count = ports->listener_count < BLOCK ? BLOCK : ports->listener_count;
  count = count > BLOCK_MOST ? BLOCK_MOST : count;
  return count < ports->queues ? ports->queues : count;
}

int harp_packet_ports_take(struct packet_ports *ports, unsigned queue, uint16_t wanted,
                           uint16_t *local, bool *changed)
{
  struct harp_local_ports *pool = &ports->pool;
  *changed = false;
  int rc = harp_local_ports_take(pool, queue, ports->queues, wanted, local);
  if (rc != -EADDRINUSE || !ports->shared)
    return rc;
  if (wanted) {
    rc = hold_block(ports, wanted, 1, NULL);
    *changed = rc == 0;
    return rc < 0 ? rc : harp_local_ports_take(pool, queue, ports->queues, wanted, local);
  }
  for (int i = 0; i < BLOCK_TRIES; i++) {
    rc = hold_any_block(ports, block_size(ports));
    if (rc < 0)
      return rc;
    *changed = true;
    if (harp_local_ports_take(pool, queue, ports->queues, 0, local) == 0)
      return 0;
  }
  return -EADDRINUSE;
}

void harp_packet_ports_give(struct packet_ports *ports, uint16_t local)
{
  harp_local_ports_give(&ports->pool, local);
}
