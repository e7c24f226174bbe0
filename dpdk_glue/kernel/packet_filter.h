/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The classic BPF programs of packet sockets and of silent listeners. They select the frames that a
 * socket receives, and the queue of each frame.
 */
#ifndef HARP_DPDK_GLUE_PACKET_FILTER_H
#define HARP_DPDK_GLUE_PACKET_FILTER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  /* During a replacement two filters of this size must fit in net.core.optmem_max (20 KiB on
   * older kernels). */
  PACKET_FILTER_RANGES = 128,
  PACKET_FILTER_OTHERS = 16,
  PACKET_FILTER_CODE = 64 + PACKET_FILTER_OTHERS + 3 * PACKET_FILTER_RANGES,
};

/* Host order, both ends included. */
struct packet_range {
  uint16_t first, last;
};

struct packet_filter {
  uint8_t mac[6];
  uint32_t address;                  /* network order */
  bool shared;                       /* the kernel owns the address: receive only HARP's frames */
  const struct packet_range *ranges; /* HARP's TCP ports; NULL: all */
  unsigned range_count;              /* at most PACKET_FILTER_RANGES */
  int ifindex;                       /* of the interface */
  const int *others; /* more interfaces that may receive frames for the address, whatever MAC */
  unsigned other_count;
};

enum packet_filter_kind {
  PACKET_FILTER_ALL, /* ARP and IPv4 */
  PACKET_FILTER_ARP,
  PACKET_FILTER_IPV4,
};

/* Sets the socket's filter and replaces the previous one without a gap. 0, or a negative errno. */
int harp_packet_filter_attach(int fd, const struct packet_filter *filter,
                              enum packet_filter_kind kind);

/* Makes the socket's fanout group choose by TCP destination port modulo its number of sockets
 * (local_ports.h). */
int harp_packet_fanout_steer(int fd);

/* Makes a kernel socket drop every packet that it receives. */
int harp_packet_filter_deafen(int fd);

#endif
