/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which local TCP ports of an address are in use, and which queue each one's
 * packets arrive on: number modulo queues, the rule that every port of HARP's
 * steers by.
 */
#ifndef HARP_DPDK_GLUE_LOCAL_PORTS_H
#define HARP_DPDK_GLUE_LOCAL_PORTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
  HARP_LOCAL_FIRST = 49152, /* the dynamic range of RFC 6335 */
  HARP_LOCAL_LAST = 65535,
  HARP_LOCAL_REST = 4096, /* ports that were given back last are not chosen while others are free */
};

/* Ports are in host order. Not locked: the caller sees to it that calls come
 * one at a time. */
struct harp_local_ports {
  uint16_t first, last; /* where "any" is looked for */
  bool strict;          /* nothing outside first..last may be taken by number either */
  uint32_t draws;       /* made without the kernel's random numbers */
  unsigned rest_count;
  uint16_t rest[HARP_LOCAL_REST]; /* given back, the earliest first */
  uint64_t taken[65536 / 64];
  uint64_t resting[65536 / 64]; /* those in rest */
};

/* first 0: the dynamic range, and any other port by number. */
void harp_local_ports_init(struct harp_local_ports *ports, uint16_t first, uint16_t last);

/* wanted 0: any that arrives on queue, by chance (RFC 6056). -EADDRINUSE: taken, or none is free;
 * -EADDRNOTAVAIL: wanted lies outside the range or arrives on another queue. */
int harp_local_ports_take(struct harp_local_ports *ports, unsigned queue, unsigned queues,
                          uint16_t wanted, uint16_t *local);
void harp_local_ports_give(struct harp_local_ports *ports, uint16_t local);
/* Makes a port available that nobody has used yet: it need not rest. */
void harp_local_ports_add(struct harp_local_ports *ports, uint16_t local);

bool harp_local_ports_taken(const struct harp_local_ports *ports, uint16_t local);

/* Marks every port taken; add makes single ones available. */
void harp_local_ports_take_all(struct harp_local_ports *ports);

#endif
