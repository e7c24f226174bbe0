/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few fields of a frame that a port must look at by itself: where a TCP
 * header ends, which queue a frame belongs to, and its checksum.
 */
#ifndef HARP_DPDK_GLUE_FRAME_FIELDS_H
#define HARP_DPDK_GLUE_FRAME_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  HARP_ETHERNET_HEADER = 14,
  HARP_FRAME_MAX = HARP_ETHERNET_HEADER + 65535, /* the largest IPv4 packet, framed */
};

struct harp_tcp_fields {
  uint16_t start;               /* of the TCP header, from the frame's first byte */
  uint16_t header_length;       /* Ethernet + IPv4 + TCP headers with their options */
  uint16_t source, destination; /* ports, host order */
};

/* True if the frame is TCP over IPv4 and its fixed TCP header (not necessarily
 * all options) lies within length bytes. */
bool harp_frame_tcp_fields(const uint8_t *frame, size_t length, struct harp_tcp_fields *peek);

/* The queue that a frame belongs to, by the rule of local_ports.h; -1: all
 * (ARP, which every queue's stack must hear). */
int harp_frame_queue(const uint8_t *frame, size_t length, unsigned queues);

/* Computes a TCP segment's checksum from nothing and stores it; a frame of
 * another protocol has its own already and is left alone. */
void harp_complete_checksum(uint8_t *frame, size_t length);

#endif
