/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Local TCP ports of a packet or xdp port.
 *
 * On its own address HARP assigns every port. On a shared address HARP must reserve each port from
 * the kernel: a listening socket holds it and drops every packet, so that the kernel does not
 * answer (silent_listeners.h). HARP reserves ports in blocks, because every block changes the
 * filters of the port's packet sockets.
 *
 * No lock: the caller must serialize reserve and release.
 */
#ifndef HARP_DPDK_GLUE_PACKET_PORTS_H
#define HARP_DPDK_GLUE_PACKET_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/agent/agent_client.h"
#include "dpdk_glue/kernel/packet_filter.h"
#include "dpdk_glue/local_ports.h"

struct packet_ports {
  struct harp_local_ports pool; /* with a shared address: ports that are held and unused are free */
  bool shared;
  uint32_t address; /* network order */
  unsigned queues;
  uint16_t first, last;                             /* the configured range; 0, 0: none */
  struct packet_range ranges[PACKET_FILTER_RANGES]; /* for the filter */
  unsigned range_count;
  int *listeners; /* shared address: one socket per held port */
  unsigned listener_count, listener_room;
  /* The node's agent, which holds the ports of first..last. It has selected their frames for good:
   * *changed of harp_packet_ports_take stays false. NULL: this process holds the ports. */
  struct harp_agent *agent;
};

/* first, last: the configured range, or 0, 0. */
void harp_packet_ports_init(struct packet_ports *ports, bool shared, uint32_t address,
                            unsigned queues, uint16_t first, uint16_t last);
void harp_packet_ports_close(struct packet_ports *ports);
/* For a forked child: closes its copies, so that the ports become free when the parent exits. */
void harp_packet_ports_forget(const struct packet_ports *ports);

/* Like reserve in port.h. *changed: the ranges have changed, and the caller must update the
 * filters before it uses the port. */
int harp_packet_ports_take(struct packet_ports *ports, unsigned queue, uint16_t wanted,
                           uint16_t *local, bool *changed);
void harp_packet_ports_give(struct packet_ports *ports, uint16_t local);
/* After an update of the filters: gives the port back if that has failed. taken: the result of
 * harp_packet_ports_take; selected: of the update. Returns the result of reserve in port.h. */
int harp_packet_ports_confirm(struct packet_ports *ports, uint16_t local, int taken, int selected);

#endif
