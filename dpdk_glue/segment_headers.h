/* SPDX-License-Identifier: Apache-2.0 */
/* The header fields that a port writes when it makes several segments of one. */
#ifndef HARP_DPDK_GLUE_SEGMENT_HEADERS_H
#define HARP_DPDK_GLUE_SEGMENT_HEADERS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "dpdk_glue/big_endian.h"
#include "dpdk_glue/frame_fields.h"
#include "harp/headers.h"
#include "harp/stack/ip/checksum.h"

/* Returns the sum of the pseudo-header, not inverted: what a sender leaves in the checksum field if
 * a device is to complete it (as virtio-net). length: of the TCP segment, bytes. */
static inline uint16_t harp_pseudo_sum(const uint8_t *ip, uint32_t length)
{
  struct harp_sum sum = {0};
  uint32_t source, destination;
  memcpy(&source, ip + IP_SRC, sizeof(source));
  memcpy(&destination, ip + IP_DST, sizeof(destination));
  harp_sum_add_pseudo(&sum, source, destination, IP_PROTOCOL_TCP, length);
  return harp_sum_fold(&sum);
}

/* Whether a TCP segment's checksum field has the sum of the pseudo-header: a device was to complete
 * it. One of 65536 complete checksums has the same value. */
static inline bool harp_is_incomplete(const uint8_t *frame, const struct harp_tcp_fields *fields)
{
  const uint8_t *ip = frame + ETH_HEADER;
  uint32_t packet_end = ETH_HEADER + harp_read16(ip + IP_TOTAL_LENGTH);
  uint16_t field;
  memcpy(&field, frame + fields->start + TCP_CHECKSUM, sizeof(field));
  return packet_end >= fields->start && field == harp_pseudo_sum(ip, packet_end - fields->start);
}

/* Completes an IPv4 header of `header` bytes: the packet has `total` bytes. */
static inline void harp_complete_ip(uint8_t *ip, uint32_t header, uint32_t total)
{
  harp_write16(ip + IP_TOTAL_LENGTH, total);
  memset(ip + IP_SUM, 0, 2);
  uint16_t sum = harp_checksum(ip, header);
  memcpy(ip + IP_SUM, &sum, sizeof(sum));
}

#endif
