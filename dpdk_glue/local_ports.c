/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/local_ports.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* A random start keeps a restarted process away from the four-tuples that its
 * predecessor left in the peers' TIME-WAIT (RFC 6056, section 3.3). */
static uint16_t random_start(uint16_t first, uint16_t last) {
  uint32_t draw = 0;
  if (getrandom(&draw, sizeof(draw), GRND_NONBLOCK) != sizeof(draw))
    return first;
  return (uint16_t)(first + draw % (last - first + 1u));
}

void harp_local_ports_init(struct harp_local_ports *ports, uint16_t first, uint16_t last) {
  memset(ports, 0, sizeof(*ports));
  ports->strict = first != 0;
  ports->first = first ? first : HARP_LOCAL_FIRST;
  ports->last = first ? last : HARP_LOCAL_LAST;
  ports->next = random_start(ports->first, ports->last);
  ports->taken[0] = 1; /* port 0 is not a port */
}

bool harp_local_ports_taken(const struct harp_local_ports *ports, uint16_t local) {
  return ports->taken[local / 64] >> (local % 64) & 1;
}

static void mark_taken(struct harp_local_ports *ports, uint16_t local) {
  ports->taken[local / 64] |= UINT64_C(1) << (local % 64);
}

static int take_wanted(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                       uint16_t wanted) {
  bool outside = wanted < ports->first || wanted > ports->last;
  if ((ports->strict && outside) || wanted % queues != queue)
    return -EADDRNOTAVAIL;
  return harp_local_ports_taken(ports, wanted) ? -EADDRINUSE : 0;
}

int harp_local_ports_take(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                          uint16_t wanted, uint16_t *local) {
  if (wanted) {
    int rc = take_wanted(ports, queue, queues, wanted);
    if (rc < 0)
      return rc;
    mark_taken(ports, wanted);
    *local = wanted;
    return 0;
  }
  unsigned span = ports->last - ports->first + 1u;
  for (unsigned i = 0; i < span; i++) {
    uint16_t candidate = (uint16_t)(ports->first + (ports->next - ports->first + i) % span);
    if (candidate % queues != queue || harp_local_ports_taken(ports, candidate))
      continue;
    mark_taken(ports, candidate);
    ports->next = candidate == ports->last ? ports->first : (uint16_t)(candidate + 1);
    *local = candidate;
    return 0;
  }
  return -EADDRINUSE;
}

void harp_local_ports_give(struct harp_local_ports *ports, uint16_t local) {
  if (local)
    ports->taken[local / 64] &= ~(UINT64_C(1) << (local % 64));
}

void harp_local_ports_take_all(struct harp_local_ports *ports) {
  memset(ports->taken, 0xff, sizeof(ports->taken));
}
