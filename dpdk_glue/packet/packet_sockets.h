/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AF_PACKET sockets of a packet port, and what HARP must know of their interface. Everything
 * that needs a privilege, or the interface's network namespace, is here. The node's agent runs the
 * same code for a process that has neither (harp/agent/open_packet.c).
 *
 * No lock: one call at a time for each object.
 */
#ifndef HARP_DPDK_GLUE_PACKET_SOCKETS_H
#define HARP_DPDK_GLUE_PACKET_SOCKETS_H

#include <stdbool.h>

#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/packet_filter.h"
#include "dpdk_glue/port.h"

enum {
  PACKET_QUEUES = 8, /* most queues of a port */
};

struct packet_sockets {
  struct harp_netdev device;
  unsigned queue_count;
  int data[PACKET_QUEUES]; /* receives IPv4, and also ARP if there is one queue; -1: none */
  /* The fanout group of several queues gives a frame to only one of them, but ARP must reach every
   * stack. A socket on several interfaces gets no error when ours goes down. This socket
   * receives ARP and such errors; -1 with one queue on one interface. */
  int arp[PACKET_QUEUES];
  int control;        /* a datagram socket in the interface's namespace, for its state; -1: none */
  int receive_buffer; /* bytes, of each data socket */
  /* Interfaces that answer ARP for our address, too; see harp_netdev_find_flux. */
  int others[PACKET_FILTER_OTHERS];
  unsigned other_count;
};

/* The ports whose frames the sockets receive. */
struct packet_selection {
  const struct packet_range *ranges; /* NULL: all ports */
  unsigned range_count;              /* at most PACKET_FILTER_RANGES */
};

/* An object without sockets, which harp_packet_sockets_close may close. */
void harp_packet_sockets_init(struct packet_sockets *sockets);

/* Reads and checks the interface, and opens the sockets. No frame reaches them yet. 0, or a
 * negative errno and one line in error, as open in port.h. Close the sockets also after a failure.
 */
int harp_packet_sockets_open(struct packet_sockets *sockets, const struct harp_port_config *config,
                             const struct packet_selection *selection, char *error);

/* Changes the selection of ports without a gap. 0, or a negative errno. */
int harp_packet_sockets_select(const struct packet_sockets *sockets,
                               const struct harp_port_config *config,
                               const struct packet_selection *selection);

/* Begins to receive. name: of the interface. 0, or a negative errno and one line in error. */
int harp_packet_sockets_start(const struct packet_sockets *sockets, const char *name, char *error);

/* Fixes the selection: no process can change the filters any more, whatever its privileges. Call
 * it after start. 0, or a negative errno. */
int harp_packet_sockets_lock(const struct packet_sockets *sockets);

/* Closes the descriptors and keeps their numbers, so that a forked child may call it. */
void harp_packet_sockets_close(const struct packet_sockets *sockets);

static inline bool harp_packet_sockets_have_arp(const struct packet_sockets *sockets)
{
  return sockets->queue_count > 1 || sockets->other_count > 0;
}

#endif
