/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames that the stack and the ports exchange, with their offloads. The layout follows the
 * common part of virtio-net, AF_PACKET's vnet header and DPDK's mbuf, so ports translate little.
 *
 * All lengths are bytes. A frame begins with its Ethernet header or, on a link without Ethernet,
 * with its IPv4 header.
 */
#ifndef HARP_FRAME_H
#define HARP_FRAME_H

#include <stdint.h>
#include <sys/uio.h>

/* Work that a device does instead of the stack. */
#define HARP_OFFLOAD_TX_CHECKSUM 0x1u /* completes the TCP checksum */
#define HARP_OFFLOAD_TSO 0x2u         /* segments a large TCP segment; implies the checksum */
#define HARP_OFFLOAD_RX_CHECKSUM 0x4u /* reports received checksums that it has verified */
#define HARP_OFFLOAD_LRO 0x8u         /* may deliver merged TCP segments */

/*
 * A frame to send. The gather list refers to memory of the stack and of the application. The port
 * may read that memory only during the call, unless it maps application memory for DMA and
 * implements reclaim (see port.h).
 */
struct harp_tx_frame {
  const struct iovec *iov; /* iov[0] holds all headers */
  uint16_t iov_count;
  uint16_t header_length;   /* Ethernet + IPv4 + TCP headers, all within iov[0] */
  uint16_t segment_size;    /* payload bytes per wire segment; 0: send as one frame */
  uint16_t checksum_start;  /* with checksum_needed: offset at which the sum begins */
  uint16_t checksum_offset; /* offset from checksum_start at which it is stored */
  uint8_t checksum_needed;  /* the checksum field holds only the pseudo-header's sum */
  uint32_t length;          /* of the whole frame */
};

/*
 * A received frame. Its headers are contiguous. The payload follows them, unless the port has
 * placed it at the hint's address (struct harp_rx_hint). Valid until the port's next receive call.
 */
struct harp_rx_frame {
  const uint8_t *header;
  uint32_t header_length; /* bytes at header; the payload may begin within them */
  const uint8_t *payload; /* the bytes that follow header[header_length - 1] */
  uint32_t payload_length;
  uint16_t segment_size; /* merged segments: payload bytes of each; 0: a single segment */
  uint8_t checksum_good; /* the device has verified the TCP checksum */
};

#endif
