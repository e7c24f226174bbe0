/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/frame_fields.h"

#include "dpdk_glue/big_endian.h"
#include "harp/headers.h"

/* Returns the end of the IPv4 header. 0: not IPv4, or an incomplete header. */
static size_t ipv4_end(const uint8_t *frame, size_t length)
{
  if (length < ETH_HEADER + IP_HEADER || harp_read16(frame + ETH_TYPE) != ETH_TYPE_IPV4) {
    return 0;
  }
  size_t header = (size_t)(frame[ETH_HEADER] & 0xf) * 4;
  if (header < IP_HEADER || ETH_HEADER + header > length) {
    return 0;
  }
  return ETH_HEADER + header;
}

static uint8_t ipv4_protocol(const uint8_t *frame) { return frame[ETH_HEADER + IP_PROTOCOL]; }

bool harp_frame_tcp_fields(const uint8_t *frame, size_t length, struct harp_tcp_fields *peek)
{
  size_t start = ipv4_end(frame, length);
  if (!start || ipv4_protocol(frame) != IP_PROTOCOL_TCP || start + TCP_HEADER > length) {
    return false;
  }
  bool later_fragment = harp_read16(frame + ETH_HEADER + IP_FRAGMENT) & IP_OFFSET_MASK;
  size_t header = (size_t)(frame[start + TCP_OFFSET] >> 4) * 4;
  if (later_fragment || header < TCP_HEADER) {
    return false;
  }
  peek->start = (uint16_t)start;
  peek->header_length = (uint16_t)(start + header);
  peek->source = harp_read16(frame + start + TCP_SOURCE);
  peek->destination = harp_read16(frame + start + TCP_DEST);
  return true;
}

/* An ICMP unreachable message quotes the start of a segment that HARP sent, so the quoted source
 * port is the local port. HARP sends no IPv4 options, so the quoted IPv4 header has 20 bytes. */
static bool quoted_port(const uint8_t *frame, size_t length, uint16_t *port)
{
  size_t start = ipv4_end(frame, length);
  if (!start || ipv4_protocol(frame) != IP_PROTOCOL_ICMP ||
      frame[start + ICMP_TYPE] != ICMP_UNREACHABLE ||
      start + ICMP_HEADER + IP_HEADER + 2 > length) {
    return false;
  }
  *port = harp_read16(frame + start + ICMP_HEADER + IP_HEADER + TCP_SOURCE);
  return true;
}

int harp_frame_queue(const uint8_t *frame, size_t length, unsigned queues)
{
  if (queues == 1) {
    return 0;
  }
  if (length >= ETH_HEADER && harp_read16(frame + ETH_TYPE) == ETH_TYPE_ARP) {
    return -1;
  }
  struct harp_tcp_fields peek;
  if (harp_frame_tcp_fields(frame, length, &peek)) {
    return (int)(peek.destination % queues);
  }
  uint16_t port;
  return quoted_port(frame, length, &port) ? (int)(port % queues) : 0;
}

static uint64_t add_words(uint64_t sum, const uint8_t *data, size_t length)
{
  for (; length >= 2; data += 2, length -= 2) {
    sum += harp_read16(data);
  }
  return length ? sum + (uint64_t)(data[0] << 8) : sum;
}

/* RFC 9293, section 3.1: the sum covers the pseudo-header, the TCP header and the data. */
void harp_complete_checksum(uint8_t *frame, size_t length)
{
  struct harp_tcp_fields peek;
  if (!harp_frame_tcp_fields(frame, length, &peek)) {
    return;
  }
  size_t packet_end = ETH_HEADER + (size_t)harp_read16(frame + ETH_HEADER + IP_TOTAL_LENGTH);
  if (packet_end > length || packet_end < peek.header_length) {
    return;
  }
  size_t segment = packet_end - peek.start;
  uint8_t *field = frame + peek.start + TCP_CHECKSUM;
  field[0] = field[1] = 0;
  uint64_t sum = add_words(IP_PROTOCOL_TCP + segment, frame + ETH_HEADER + IP_SRC, 8);
  sum = add_words(sum, frame + peek.start, segment);
  while (sum >> 16) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  field[0] = (uint8_t)(~sum >> 8);
  field[1] = (uint8_t)~sum;
}
