/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/kernel/packet_ports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "dpdk_glue/kernel/silent_listeners.h"

enum {
  BLOCK = 16,       /* ports in the first block; each later block doubles the total */
  BLOCK_MOST = 64,  /* largest block, which keeps the filter short */
  BLOCK_TRIES = 64, /* blocks to try until one has a port for the queue */
};

/* A process that finds no two blocks in a row has this many, without the small first ones. */
_Static_assert((PACKET_FILTER_RANGES - 3) * BLOCK_MOST >= HARP_LOCAL_HELD, "too many ports");

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
    if (first) {
      ports->ranges[ports->range_count++] = (struct packet_range){first, last};
    }
    return;
  }
  /* Any port is possible, because the kernel's range can change at any time. */
  harp_local_ports_init(&ports->pool, first ? first : 1, first ? last : 65535);
  harp_local_ports_take_all(&ports->pool);
}

void harp_packet_ports_forget(const struct packet_ports *ports)
{
  for (unsigned i = 0; i < ports->listener_count; i++) {
    close(ports->listeners[i]);
  }
}

void harp_packet_ports_close(struct packet_ports *ports)
{
  harp_packet_ports_forget(ports);
  free(ports->listeners);
  ports->listeners = NULL;
  ports->listener_count = 0;
}

/* Makes room for count more listeners. */
static int make_room(struct packet_ports *ports, unsigned count)
{
  unsigned room = ports->listener_room ? ports->listener_room : BLOCK;
  while (room < ports->listener_count + count) {
    room *= 2;
  }
  if (room == ports->listener_room) {
    return 0;
  }
  int *grown = malloc(room * sizeof(*grown)), *old = ports->listeners;
  if (!grown) {
    return -ENOMEM;
  }
  if (old) {
    memcpy(grown, old, ports->listener_count * sizeof(*grown));
  }
  ports->listeners = grown; /* the array is always valid, because a fork may happen now */
  ports->listener_room = room;
  free(old);
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

/* Holds up to count consecutive free ports from first on, or from a port that the kernel grants.
 * After first it takes only ports in `offered`; NULL: any port. */
static int hold_block(struct packet_ports *ports, uint16_t first, unsigned count,
                      const struct harp_kernel_ports *offered)
{
  struct silent_block block = {
      .first = first,
      .limit = ports->last ? ports->last : 65535,
      .count = count,
      .offered = offered,
  };
  if (ports->range_count == PACKET_FILTER_RANGES) {
    return -EADDRINUSE;
  }
  int rc = make_room(ports, count);
  if (rc < 0) {
    return rc;
  }
  int *fds = ports->listeners + ports->listener_count;
  int held = ports->agent ? harp_agent_listen(ports->agent, &block, fds)
                          : harp_silent_listeners_open(ports->address, &block, fds);
  if (held < 0) {
    return held;
  }
  ports->listener_count += (unsigned)held;
  for (int i = 0; i < held; i++) {
    harp_local_ports_add(&ports->pool, (uint16_t)(block.first + i));
  }
  add_range(ports, block.first, (uint16_t)(block.first + held - 1));
  return 0;
}

/* A held port cannot be bound again, so there is no need to try. */
static bool is_held(const struct packet_ports *ports, uint16_t port)
{
  for (unsigned i = 0; i < ports->range_count; i++) {
    if (ports->ranges[i].first <= port && port <= ports->ranges[i].last) {
      return true;
    }
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
  if (!ports->first) {
    return hold_granted_block(ports, count);
  }
  unsigned span = ports->last - ports->first + 1u;
  uint32_t start = 0;
  if (getrandom(&start, sizeof(start), GRND_NONBLOCK) != sizeof(start)) {
    start = 0;
  }
  for (unsigned i = 0; i < span; i++) {
    uint16_t first = (uint16_t)(ports->first + (start % span + i) % span);
    int rc = is_held(ports, first) ? -EADDRINUSE : hold_block(ports, first, count, NULL);
    if (rc != -EADDRINUSE) {
      return rc;
    }
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
  if (rc != -EADDRINUSE || !ports->shared) {
    return rc;
  }
  if (wanted) {
    rc = hold_block(ports, wanted, 1, NULL);
    *changed = rc == 0 && !ports->agent;
    return rc < 0 ? rc : harp_local_ports_take(pool, queue, ports->queues, wanted, local);
  }
  for (int i = 0; i < BLOCK_TRIES; i++) {
    rc = hold_any_block(ports, block_size(ports));
    if (rc < 0) {
      return rc;
    }
    *changed = !ports->agent;
    if (harp_local_ports_take(pool, queue, ports->queues, 0, local) == 0) {
      return 0;
    }
  }
  return -EADDRINUSE;
}

void harp_packet_ports_give(struct packet_ports *ports, uint16_t local)
{
  harp_local_ports_give(&ports->pool, local);
}

int harp_packet_ports_confirm(struct packet_ports *ports, uint16_t local, int taken, int selected)
{
  if (taken == 0 && selected < 0) {
    harp_packet_ports_give(ports, local);
  }
  return taken < 0 ? taken : selected;
}
