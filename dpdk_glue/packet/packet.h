/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "packet:IFACE": the parts of the AF_PACKET port. packet.c opens it and takes
 * ports, packet_rx.c receives, packet_tx.c sends.
 */
#ifndef HARP_DPDK_GLUE_PACKET_H
#define HARP_DPDK_GLUE_PACKET_H

#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/packet/packet_ports.h"
#include "dpdk_glue/port.h"

enum {
  PACKET_BURST = 32,  /* frames per receive call */
  PACKET_HELD = 32,   /* small frames that wait for the end of the burst */
  PACKET_SMALL = 512, /* a frame up to here is copied and held back, bytes */
  PACKET_IOV = 256,   /* pieces of a frame that goes out at once */
  PACKET_ARP_BURST = 4,
  PACKET_ARP_BYTES = 64,
  PACKET_ARP_PERIOD = 64, /* receive calls between looks at a separate ARP socket */
  PACKET_VNET = sizeof(struct virtio_net_hdr),
  PACKET_HEADER_ROOM = 256, /* longest header_length of a hint, with the vnet header */
  /* Not a power of two: slots must not fall on the same cache sets. */
  PACKET_SLOT = (PACKET_HEADER_ROOM + HARP_FRAME_MAX + 63) / 64 * 64 + 64 * 5,
};

/* Where one frame of a burst is received; see packet_rx.c. */
struct packet_slot {
  uint16_t header; /* bytes of the hint's header; 0: no hint for this frame */
  uint32_t placed; /* bytes that were offered at the hint's place */
  uint8_t *hint;
};

struct packet_held {
  struct virtio_net_hdr vnet;
  uint8_t bytes[PACKET_SMALL];
};

/* Counts since the last count(); port.h's counters of the same names. */
struct packet_counts {
  uint64_t tx_copied, tx_full, tx_errors, rx_lost;
};

/* One poller's. */
struct packet_queue {
  _Alignas(64) int fd; /* IPv4, and ARP where there is one queue */
  int arp_fd;          /* several queues: the fanout group gives a frame to one
                          of them, but ARP must reach every stack; else -1 */
  int epoll_fd;        /* both of them; -1 with one queue */
  unsigned arp_in;     /* receive calls until the next look at arp_fd */
  unsigned burst;      /* frames asked for at a time: as many as came lately */
  bool down;           /* the kernel said ENETDOWN; ask until it is up again */
  struct packet_counts counts;

  uint8_t *slots; /* PACKET_BURST times PACKET_SLOT bytes */
  struct packet_slot slot[PACKET_BURST];
  struct mmsghdr rx[PACKET_BURST];
  struct iovec rx_iov[PACKET_BURST][3];
  uint8_t arp[PACKET_ARP_BURST][PACKET_ARP_BYTES];

  struct sockaddr_ll to_ipv4, to_arp; /* the interface, by protocol */
  unsigned held_count;
  struct packet_held held[PACKET_HELD];
  struct mmsghdr tx[PACKET_HELD];
  struct iovec tx_held_iov[PACKET_HELD];
  struct iovec tx_iov[1 + PACKET_IOV];
};

struct packet_port {
  struct harp_port port;
  int ifindex;
  unsigned queue_count;
  bool shallow;       /* the kernel did not grant a deep receive buffer */
  int receive_buffer; /* bytes */
  struct packet_ports ports;
  struct packet_queue *queues;
};

/* -ENOMEM, or 0. */
int harp_packet_rx_init(struct packet_queue *queue);
void harp_packet_rx_free(struct packet_queue *queue);
void harp_packet_tx_init(struct packet_queue *queue, int ifindex);

/* As in port.h. */
int harp_packet_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max);
int harp_packet_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
void harp_packet_flush(struct harp_port *port, unsigned queue);

#endif
