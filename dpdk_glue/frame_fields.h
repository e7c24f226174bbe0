/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few frame fields that a port must read itself: the end of the TCP header, the queue of a
 * frame, and the TCP checksum.
 */
#ifndef HARP_DPDK_GLUE_FRAME_FIELDS_H
#define HARP_DPDK_GLUE_FRAME_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/headers.h"

enum {
  /* an Ethernet frame with the largest IPv4 packet */
  HARP_FRAME_MAX = ETH_HEADER + 65535,
};

struct harp_tcp_fields {
  uint16_t start; /* offset of the TCP header from the start of the frame */
  /* bytes of the Ethernet, IPv4 and TCP headers, with their options */
  uint16_t header_length;
  uint16_t source, destination; /* ports, host order */
};

/* Returns true if the frame is TCP over IPv4 and its fixed TCP header lies within length bytes.
 * The options may lie outside. */
bool harp_frame_tcp_fields(const uint8_t *frame, size_t length, struct harp_tcp_fields *peek);

/* Returns the queue of a frame by the rule of local_ports.h. -1: all queues (ARP, which every
 * queue's stack must receive). */
int harp_frame_queue(const uint8_t *frame, size_t length, unsigned queues);

/* Computes a TCP segment's checksum from scratch and stores it. Leaves frames of other protocols
 * unchanged, because their checksums are already complete. */
void harp_complete_checksum(uint8_t *frame, size_t length);

#endif
