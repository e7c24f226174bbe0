/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/frame_fields.h"

enum {
  TYPE_IPV4 = 0x0800,
  TYPE_ARP = 0x0806,
  PROTOCOL_ICMP = 1,
  PROTOCOL_TCP = 6,
  IPV4_HEADER = 20,
  TCP_HEADER = 20,
  TCP_CHECKSUM = 16, /* offset in the TCP header */
  ICMP_HEADER = 8,
  ICMP_UNREACHABLE = 3,
};

static uint16_t read16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

/* Returns the end of the IPv4 header. 0: not IPv4, or an incomplete header. */
static size_t ipv4_end(const uint8_t *frame, size_t length)
{
  if (length < HARP_ETHERNET_HEADER + IPV4_HEADER || read16(frame + 12) != TYPE_IPV4)
    return 0;
  size_t header = (size_t)(frame[HARP_ETHERNET_HEADER] & 0xf) * 4;
  if (header < IPV4_HEADER || HARP_ETHERNET_HEADER + header > length)
    return 0;
  return HARP_ETHERNET_HEADER + header;
}

static uint8_t ipv4_protocol(const uint8_t *frame) { return frame[HARP_ETHERNET_HEADER + 9]; }

bool harp_frame_tcp_fields(const uint8_t *frame, size_t length, struct harp_tcp_fields *peek)
{
  size_t start = ipv4_end(frame, length);
  if (!start || ipv4_protocol(frame) != PROTOCOL_TCP || start + TCP_HEADER > length)
    return false;
  bool later_fragment = read16(frame + HARP_ETHERNET_HEADER + 6) & 0x1fff;
  size_t header = (size_t)(frame[start + 12] >> 4) * 4;
  if (later_fragment || header < TCP_HEADER)
    return false;
  peek->start = (uint16_t)start;
  peek->header_length = (uint16_t)(start + header);
  peek->source = read16(frame + start);
  peek->destination = read16(frame + start + 2);
  return true;
}

/* An ICMP unreachable message quotes the start of a segment that HARP sent, so the quoted source
 * port is the local port. HARP sends no IPv4 options, so the quoted IPv4 header has 20 bytes. */
static bool quoted_port(const uint8_t *frame, size_t length, uint16_t *port)
{
  size_t start = ipv4_end(frame, length);
  if (!start || ipv4_protocol(frame) != PROTOCOL_ICMP || frame[start] != ICMP_UNREACHABLE ||
      start + ICMP_HEADER + IPV4_HEADER + 2 > length)
    return false;
  *port = read16(frame + start + ICMP_HEADER + IPV4_HEADER);
  return true;
}

int harp_frame_queue(const uint8_t *frame, size_t length, unsigned queues)
{
  if (queues == 1)
    return 0;
  if (length >= HARP_ETHERNET_HEADER && read16(frame + 12) == TYPE_ARP)
    return -1;
  struct harp_tcp_fields peek;
  if (harp_frame_tcp_fields(frame, length, &peek))
    return (int)(peek.destination % queues);
  uint16_t port;
  return quoted_port(frame, length, &port) ? (int)(port % queues) : 0;
}

static uint64_t add_words(uint64_t sum, const uint8_t *data, size_t length)
{
  for (; length >= 2; data += 2, length -= 2)
    sum += read16(data);
  return length ? sum + (uint64_t)(data[0] << 8) : sum;
}

/* RFC 9293, section 3.1: the sum covers the pseudo-header, the TCP header and the data. */
void harp_complete_checksum(uint8_t *frame, size_t length)
{
  struct harp_tcp_fields peek;
  if (!harp_frame_tcp_fields(frame, length, &peek))
    return;
  size_t packet_end = HARP_ETHERNET_HEADER + (size_t)read16(frame + HARP_ETHERNET_HEADER + 2);
  if (packet_end > length || packet_end < peek.header_length)
    return;
  size_t segment = packet_end - peek.start;
  uint8_t *field = frame + peek.start + TCP_CHECKSUM;
  field[0] = field[1] = 0;
  uint64_t sum = add_words(PROTOCOL_TCP + segment, frame + HARP_ETHERNET_HEADER + 12, 8);
  sum = add_words(sum, frame + peek.start, segment);
  while (sum >> 16)
    sum = (sum & 0xffff) + (sum >> 16);
  field[0] = (uint8_t)(~sum >> 8);
  field[1] = (uint8_t)~sum;
}
