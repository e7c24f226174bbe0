/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local TCP ports of a packet port.
 *
 * On an address of HARP's own they are HARP's to give. On an address that it
 * shares, each must be taken from the kernel: a listening socket holds it, deaf
 * to everything, so that the kernel does not answer. They are taken in blocks,
 * because every block changes the packet sockets' filter.
 *
 * Not locked: reserve and release come one at a time.
 */
#ifndef HARP_DPDK_GLUE_PACKET_PORTS_H
#define HARP_DPDK_GLUE_PACKET_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/local_ports.h"
#include "dpdk_glue/packet/packet_filter.h"

struct packet_ports {
  struct harp_local_ports pool; /* shared: what is held and not given out is free */
  bool shared;
  uint32_t address; /* network order */
  unsigned queues;
  uint16_t first, last;                             /* the configured range; 0, 0: none */
  struct packet_range ranges[PACKET_FILTER_RANGES]; /* for the filter */
  unsigned range_count;
  int *listeners; /* shared: one socket per port held */
  unsigned listener_count, listener_room;
};

/* first, last: the configured range, or 0, 0. */
void harp_packet_ports_init(struct packet_ports *ports, bool shared, uint32_t address,
                            unsigned queues, uint16_t first, uint16_t last);
void harp_packet_ports_close(struct packet_ports *ports);
/* In a forked child: the parent's ports are free once the parent has gone. */
void harp_packet_ports_forget(const struct packet_ports *ports);

/* As reserve in port.h. *changed: ranges are others now, the filters must
 * follow before the port is used. */
int harp_packet_ports_take(struct packet_ports *ports, unsigned queue, uint16_t wanted,
                           uint16_t *local, bool *changed);
void harp_packet_ports_give(struct packet_ports *ports, uint16_t local);

#endif
