/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/frames.h"

#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"

static void store_sum(uint8_t *at, uint16_t sum) { memcpy(at, &sum, sizeof sum); }

uint32_t frame_ipv4(uint32_t from, uint32_t to, uint8_t protocol, uint32_t payload_length,
                    uint8_t *out)
{
  memset(out, 0, IP_HEADER);
  out[0] = 0x45;
  store_be16(out + IP_TOTAL_LENGTH, (uint16_t)(IP_HEADER + payload_length));
  out[IP_TTL_BYTE] = 64;
  out[IP_PROTOCOL] = protocol;
  store_address(out + IP_SRC, from);
  store_address(out + IP_DST, to);
  store_sum(out + IP_SUM, harp_checksum(out, IP_HEADER));
  return IP_HEADER;
}

uint32_t frame_tcp_headers(const struct fuzz_segment *segment, uint8_t *out)
{
  uint32_t header = TCP_HEADER + segment->option_length;
  uint8_t *tcp = out + frame_ipv4(segment->from, segment->to, IP_PROTOCOL_TCP,
                                  header + segment->payload_length, out);
  memset(tcp, 0, TCP_HEADER);
  store_be16(tcp + TCP_SOURCE, segment->from_port);
  store_be16(tcp + TCP_DEST, segment->to_port);
  store_be32(tcp + TCP_SEQUENCE, segment->seq);
  store_be32(tcp + TCP_ACKNOWLEDGEMENT, segment->ack);
  tcp[TCP_OFFSET] = (uint8_t)(header / 4 << 4);
  tcp[TCP_FLAG_BYTE] = segment->flags;
  store_be16(tcp + TCP_WINDOW_FIELD, segment->window);
  memcpy(tcp + TCP_HEADER, segment->options, segment->option_length);
  return IP_HEADER + header;
}

uint8_t *frame_timestamp(uint8_t *at, uint32_t value, uint32_t echo)
{
  store_be32(at, 0x0101080a);
  store_be32(at + 4, value);
  store_be32(at + 8, echo);
  return at + 12;
}

/* Returns the offset of the checksum in the transport header; 0: none, or an unknown protocol. */
static uint32_t checksum_at(uint8_t protocol)
{
  return protocol == IP_PROTOCOL_TCP    ? TCP_CHECKSUM
         : protocol == IP_PROTOCOL_ICMP ? ICMP_CHECKSUM
                                        : 0;
}

void frame_mend(uint8_t *ip, uint32_t length)
{
  uint32_t header = length ? (uint32_t)(ip[0] & 15) * 4 : 0;
  if (header < IP_HEADER || header > length) {
    return;
  }
  store_sum(ip + IP_SUM, 0);
  store_sum(ip + IP_SUM, harp_checksum(ip, header));
  uint32_t total = load_be16(ip + IP_TOTAL_LENGTH), at = checksum_at(ip[IP_PROTOCOL]);
  if (at == 0 || total > length || total < header + at + 2) {
    return;
  }
  struct harp_sum sum = {0};
  if (ip[IP_PROTOCOL] == IP_PROTOCOL_TCP) {
    harp_sum_add_pseudo(&sum, load_address(ip + IP_SRC), load_address(ip + IP_DST), IP_PROTOCOL_TCP,
                        total - header);
  }
  store_sum(ip + header + at, 0);
  harp_sum_add(&sum, ip + header, total - header);
  store_sum(ip + header + at, (uint16_t)~harp_sum_fold(&sum));
}
