/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "xdp:IFACE": the parts of the AF_XDP port. xdp.c opens it and reserves local ports, xdp_rx.c
 * receives, xdp_tx.c and dpdk_glue/kernel/packet_tx.c send, xdp_socket.c has sockets and their
 * memory, xdp_steering.c has the XDP program, and xdp_spec.c reads the options of a device.
 */
#ifndef HARP_DPDK_GLUE_XDP_H
#define HARP_DPDK_GLUE_XDP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/agent/agent_client.h"
#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/packet_ports.h"
#include "dpdk_glue/kernel/packet_tx.h"
#include "dpdk_glue/port.h"
#include "dpdk_glue/xdp/xdp_socket.h"
#include "dpdk_glue/xdp/xdp_steering.h"

enum {
  XDP_BURST = 32,          /* frames per receive call, and frames per system call that sends */
  XDP_OTHER_BURST = 4,     /* frames per receive call from the packet socket */
  XDP_OTHER_BYTES = 65550, /* longest frame from it */
  XDP_OTHER_PERIOD = 64,   /* receive calls between two looks at it while it has no frames */
};

/* Counts since the last count(). port.h's counters have the same names. */
struct xdp_counts {
  uint64_t tx_copied, tx_full, tx_errors, rx_lost;
};

/* A chunk that the stack reads. It goes to the fill ring of its socket at the next receive. */
struct xdp_rx_chunk {
  struct xdp_socket *socket;
  uint64_t address;
};

struct xdp_port {
  struct harp_port port;
  struct xdp_spec spec;
  struct harp_netdev device;
  struct harp_agent agent; /* of the node, if it opened the sockets */
  struct xdp_steering steering;
  struct packet_ports ports;
  struct xdp_umem umem;
  /* One socket for each queue of the interface, because the interface decides on which queue a
   * frame arrives. The first one sends. */
  struct xdp_socket sockets[XDP_NIC_QUEUES];
  unsigned socket_count;
  unsigned next; /* the socket at which the next receive begins */
  /* A packet socket. It receives what the AF_XDP sockets do not: ARP, ICMP, and frames from other
   * processes of this host. */
  int other_fd;
  bool has_vnet;      /* each frame of other_fd has a virtio-net header */
  bool sends_packets; /* other_fd sends all frames, as the AF_XDP sockets are in copy mode */
  struct packet_tx packet_tx;
  int epoll_fd;               /* watches all sockets */
  int control_fd;             /* of harp_netdev_control */
  bool local_sender;          /* checksums may be incomplete; see single in xdp_rx.c */
  int link;                   /* 0, or an error of receive: look again before each receive */
  _Atomic(bool) lost_address; /* since the last such look */
  _Atomic(unsigned) other_in; /* receive calls until the next look at other_fd */
  uint32_t unsent;            /* descriptors in the ring for sending that no call has announced */
  struct xdp_counts counts;
  struct xdp_statistics counted; /* the kernel's counts at the last count() */

  struct xdp_rx_chunk held[XDP_BURST];
  unsigned held_count;
  uint8_t other[XDP_OTHER_BURST][PACKET_VNET + XDP_OTHER_BYTES];
};

/* As open in port.h, for a process that passes the descriptors on: the sockets' memory is a file.
 */
int harp_xdp_open_shared(struct harp_port **port, const struct harp_port_config *config,
                         char *error);
/* Has the agent open the sockets, start them and take the job's local ports. Stores what
 * harp_xdp_open_shared stores, but for the maps of the program. As open in port.h. */
int harp_xdp_agent_open(struct xdp_port *xdp, const struct harp_port_config *config, char *error);

static inline struct xdp_port *harp_xdp_of(struct harp_port *port)
{
  return (struct xdp_port *)port;
}

/* Chooses the socket that sends, once all sockets are open. */
void harp_xdp_tx_init(struct xdp_port *xdp);

/* As in port.h. */
int harp_xdp_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                     struct harp_rx_frame *frames, int max);
int harp_xdp_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
void harp_xdp_flush(struct harp_port *port, unsigned queue);

/* Announces all frames to the device. false: it has no room, and must be asked again. Only the
 * poller. */
bool harp_xdp_flush_all(struct xdp_port *xdp);

#endif
