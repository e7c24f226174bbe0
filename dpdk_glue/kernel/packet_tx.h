/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends frames by a packet socket. The device or the kernel segments them and completes their
 * checksums. A packet port sends so, and an xdp port whose sockets are in copy mode.
 *
 * One poller uses a sender, without a lock.
 */
#ifndef HARP_DPDK_GLUE_KERNEL_PACKET_TX_H
#define HARP_DPDK_GLUE_KERNEL_PACKET_TX_H

#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/port.h"

enum {
  PACKET_TX_HELD = 32,   /* small frames held back until the end of the burst */
  PACKET_TX_SMALL = 512, /* frames up to this size are copied and held back, bytes */
  PACKET_TX_IOV = 256,   /* most pieces of a frame that is sent at once */
  /* The kernel keeps a frame of this length in one buffer of 16 pages, with its own data. */
  PACKET_TX_FRAME_MAX = 16 * 4096 - 512,
  /* Bytes; one window of segments with the kernel's overhead. */
  PACKET_RECEIVE_BUFFER = 64 * 1024 * 1024,
  PACKET_VNET = sizeof(struct virtio_net_hdr),
};

struct packet_tx_held {
  struct virtio_net_hdr vnet;
  uint8_t bytes[PACKET_TX_SMALL];
};

struct packet_tx {
  int fd;           /* a packet socket with PACKET_VNET_HDR; its owner closes it */
  bool tso;         /* the device segments frames */
  uint32_t longest; /* frame, bytes */
  struct sockaddr_ll to_ipv4, to_arp; /* the interface, one address per protocol */
  unsigned paged; /* long frames to send in pages, because contiguous memory was lacking */
  unsigned lack;  /* their number after the last lack; 0: a linear frame got through since */
  uint64_t copied, full, errors; /* since the owner's last count; port.h's counters */
  /* ms: when frames began to be refused by ENOBUFS; 0: none is. Of held ones: since a frame got
   * through. Of long ones: since one to the same host got through. */
  uint64_t refused_since, long_refused_since;
  uint32_t long_refused_to; /* network order */
  unsigned overtaken;       /* times that frames got through past the held ones at the head */
  unsigned held_count;
  struct packet_tx_held held[PACKET_TX_HELD];
  struct mmsghdr message[PACKET_TX_HELD];
  struct iovec held_iov[PACKET_TX_HELD];
  struct iovec iov[1 + PACKET_TX_IOV];
};

/* fd: see struct packet_tx. */
void harp_packet_tx_init(struct packet_tx *tx, const struct harp_netdev *device, int fd);
/* Returns the length of the longest frame that a socket of the device takes, bytes. */
uint32_t harp_packet_tx_longest(const struct harp_netdev *device);
/* Enlarges a packet socket's buffers for sending and receiving, as far as the process may. */
void harp_packet_set_buffers(int fd);
/* As transmit in port.h. */
int harp_packet_tx_send(struct packet_tx *tx, const struct harp_tx_frame *frame);
/* Sends the held frames. 0; -EAGAIN: the device is full, and the rest is still held; or the error
 * of a frame that is lost, as of transmit in port.h. */
int harp_packet_tx_flush(struct packet_tx *tx);
/* Adds the counts since the last call to the counters of port.h. */
void harp_packet_tx_count(struct packet_tx *tx, uint64_t *counters);

#endif
