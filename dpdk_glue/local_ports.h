/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records which local TCP ports of an address are in use. All HARP ports steer by one rule: the
 * queue is the port number modulo the number of queues.
 */
#ifndef HARP_DPDK_GLUE_LOCAL_PORTS_H
#define HARP_DPDK_GLUE_LOCAL_PORTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
  HARP_LOCAL_FIRST = 49152, /* the dynamic range of RFC 6335 */
  HARP_LOCAL_LAST = 65535,
  HARP_LOCAL_HELD = 8000, /* ports that a process can hold at the kernel's address, at least */
  HARP_LOCAL_REST = 4096, /* size of the list of recently released ports, which are chosen last */
};

/* TCP port numbers are in host order. No lock: the caller must serialize the calls. */
struct harp_local_ports {
  uint16_t first, last; /* range for "any port" */
  bool strict;          /* true: take refuses a wanted port outside first..last */
  uint32_t draws;       /* number of choices made without the kernel's random numbers */
  unsigned rest_count;
  uint16_t rest[HARP_LOCAL_REST]; /* recently released ports, the earliest first */
  uint64_t taken[65536 / 64];
  uint64_t resting[65536 / 64]; /* the ports in rest, as a bit map */
};

/* first 0: use the dynamic range, and allow any port as a wanted one. */
void harp_local_ports_init(struct harp_local_ports *ports, uint16_t first, uint16_t last);

/* wanted 0: a random port of this queue (RFC 6056). -EADDRINUSE: the port is taken, or none is
 * free. -EADDRNOTAVAIL: wanted lies outside the range or belongs to another queue. */
int harp_local_ports_take(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                          uint16_t wanted, uint16_t *local);
void harp_local_ports_give(struct harp_local_ports *ports, uint16_t local);
/* Makes a port available that was never used, so it does not have to rest. */
void harp_local_ports_add(struct harp_local_ports *ports, uint16_t local);

/* Marks every port taken. harp_local_ports_add makes single ones available. */
void harp_local_ports_take_all(struct harp_local_ports *ports);

#endif
