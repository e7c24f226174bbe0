/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "packet:IFACE": the parts of the AF_PACKET port. packet.c opens it and reserves local ports,
 * packet_sockets.c opens its sockets, packet_agent.c lets the node's agent open them, packet_rx.c
 * receives, packet_place.c puts payload where it belongs. dpdk_glue/kernel/packet_tx.c sends.
 */
#ifndef HARP_DPDK_GLUE_PACKET_H
#define HARP_DPDK_GLUE_PACKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "dpdk_glue/agent/agent_client.h"
#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/kernel/packet_ports.h"
#include "dpdk_glue/kernel/packet_tx.h"
#include "dpdk_glue/packet/packet_sockets.h"
#include "dpdk_glue/port.h"

enum {
  PACKET_BURST = 32, /* frames per receive call */
  PACKET_ARP_BURST = 4,
  PACKET_ARP_BYTES = 64,
  PACKET_ARP_PERIOD = 64,   /* receive calls between two reads of a separate ARP socket */
  PACKET_PIECES = 4,        /* frames that one received frame may be split into */
  PACKET_HEADER_ROOM = 256, /* longest header_length of a hint, with the vnet header */
  /* Not a power of two, so that slots do not fall on the same cache sets. */
  PACKET_SLOT = (PACKET_HEADER_ROOM + HARP_FRAME_MAX + 63) / 64 * 64 + 64 * 5,
};

/* Describes how one frame of a burst is received; see packet_place.h. */
struct packet_slot {
  uint16_t header; /* the hint's header_length; 0: no hint for this frame */
  uint32_t placed; /* bytes of room offered at the hint's payload address */
  uint8_t *hint;
  uint32_t gap;         /* bytes after them in the slot; 0: there is no second place */
  uint32_t next_placed; /* bytes of room offered at the second place */
  uint8_t *next;
};

/* One queue, used by one poller. */
struct packet_queue {
  _Alignas(64) int fd; /* receives IPv4, and also ARP if there is one queue */
  /* The fanout group of several queues gives a frame to only one of them, but ARP must reach every
   * stack. A socket on several interfaces gets no error when ours goes down. This socket
   * receives ARP and such errors; -1 with one queue on one interface. */
  int arp_fd;
  int epoll_fd;             /* watches both sockets; -1 without arp_fd */
  _Atomic(unsigned) arp_in; /* receive calls until the next read of arp_fd */
  unsigned burst;           /* frames requested per call: twice the last burst */
  bool down;                /* the kernel reported ENETDOWN; check the link before each receive */
  uint64_t rx_lost;         /* frames since the last count() */

  uint8_t *slots; /* PACKET_BURST slots of PACKET_SLOT bytes */
  struct packet_slot slot[PACKET_BURST];
  struct mmsghdr rx[PACKET_BURST];
  struct iovec rx_iov[PACKET_BURST][5];
  uint8_t arp[PACKET_ARP_BURST][PACKET_ARP_BYTES];

  struct packet_tx tx;
};

struct packet_port {
  struct harp_port port;
  struct harp_port_config config; /* without the strings */
  char name[16];                  /* of the interface */
  struct packet_sockets sockets;
  struct harp_agent agent; /* of the node, if it opened the sockets */
  struct packet_ports ports;
  unsigned queue_count;
  struct packet_queue *queues;
  /* As harp_netdev_lost_address. Peers no longer reach the port, and its ARP would mislead them
   * about the kernel's address. */
  _Atomic(bool) lost_address;
};

/* Has the agent open the port's sockets, and takes its local ports from the agent, too. As open in
 * port.h. */
int harp_packet_agent_open(struct packet_port *packet, const struct harp_port_config *config,
                           char *error);

/* 0, or -ENOMEM. */
int harp_packet_rx_init(struct packet_queue *queue);
void harp_packet_rx_free(struct packet_queue *queue);

/* As in port.h. */
int harp_packet_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max);

#endif
