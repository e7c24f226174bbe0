/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame with what a device can do for it: the words in which the stack and
 * the ports speak of packets. The layout follows what virtio-net, AF_PACKET's
 * vnet header and DPDK's mbuf have in common, so no port has to translate much.
 *
 * All lengths are bytes; a frame begins with its Ethernet header (or, on a
 * link without one, with its IPv4 header).
 */
#ifndef HARP_FRAME_H
#define HARP_FRAME_H

#include <stdint.h>
#include <sys/uio.h>

/* What a device does on transmission so that the stack need not. */
#define HARP_OFFLOAD_TX_CHECKSUM 0x1u /* completes the TCP checksum */
#define HARP_OFFLOAD_TSO 0x2u         /* cuts a large TCP segment; implies the checksum */
#define HARP_OFFLOAD_RX_CHECKSUM 0x4u /* says when a received checksum is known good */
#define HARP_OFFLOAD_LRO 0x8u         /* may hand over merged TCP segments */

/*
 * A frame to send. The gather list refers to memory of the stack and of the
 * application; the port may read it only during the call, unless it sends
 * from foreign memory and reports when it has let go (see port.h, reclaim).
 */
struct harp_tx_frame {
  const struct iovec *iov; /* iov[0] holds all headers */
  uint16_t iov_count;
  uint16_t header_length;   /* Ethernet + IPv4 + TCP headers, all within iov[0] */
  uint16_t segment_size;    /* payload bytes per wire segment; 0: send as one frame */
  uint16_t checksum_start;  /* with checksum_needed: where the sum begins */
  uint16_t checksum_offset; /* and where, from there, it is stored */
  uint8_t checksum_needed;  /* the checksum field holds the pseudo-header's sum */
  uint32_t length;          /* whole frame */
};

/*
 * A received frame: headers contiguous, payload either behind them or, where
 * the port scattered it to where it was expected, somewhere else. Valid until
 * the port's next receive call.
 */
struct harp_rx_frame {
  const uint8_t *header;
  uint32_t header_length; /* bytes at header; payload may begin within them */
  const uint8_t *payload; /* the bytes that follow header[header_length - 1] */
  uint32_t payload_length;
  uint16_t segment_size; /* merged segments: payload bytes of each; 0: a single one */
  uint8_t checksum_good; /* the device vouches for the transport checksum */
};

#endif
