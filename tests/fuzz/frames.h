/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a peer, with correct checksums, so that the fuzzer chooses each error. */
#ifndef HARP_TESTS_FUZZ_FRAMES_H
#define HARP_TESTS_FUZZ_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "harp/frame.h"

enum { FRAME_OPTIONS = 40 };

/* A segment from the peer. Addresses in network order, the rest in host order. */
struct fuzz_segment {
  uint32_t from, to;
  uint16_t from_port, to_port;
  uint32_t seq, ack;
  uint16_t window;
  uint8_t flags;
  uint8_t option_length; /* a multiple of 4 */
  uint8_t options[FRAME_OPTIONS];
  const uint8_t *payload;
  uint32_t payload_length;
};

/* Writes IPv4 and TCP headers and returns their length. The TCP checksum stays 0, because the
 * device reports it as good. */
uint32_t frame_tcp_headers(const struct fuzz_segment *segment, uint8_t *out);
/* Writes the padded timestamp option (RFC 7323) and returns its end. */
uint8_t *frame_timestamp(uint8_t *at, uint32_t value, uint32_t echo);
/* Writes an IPv4 header for payload_length bytes and returns its length. */
uint32_t frame_ipv4(uint32_t from, uint32_t to, uint8_t protocol, uint32_t payload_length,
                    uint8_t *out);
/* Corrects the checksums of a frame as far as its lengths allow. */
void frame_mend(uint8_t *ip, uint32_t length);

#endif
