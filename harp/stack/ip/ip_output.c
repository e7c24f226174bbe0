/* SPDX-License-Identifier: Apache-2.0 */
/* IPv4 output: headers and next hop. */
#include "harp/stack/ip/ip_output.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/link_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/stack_state.h"

/* The checksum of a header without options. */
static uint16_t header_checksum(const uint8_t *ip)
{
  uint32_t words[IP_HEADER / 4];
  uint64_t sum = 0;
  memcpy(words, ip, IP_HEADER);
  for (int i = 0; i < IP_HEADER / 4; i++) {
    sum += words[i];
  }
  return (uint16_t)~harp_fold(sum);
}

uint32_t ip_write_headers(struct harp_stack *stack, uint8_t *out, uint32_t source,
                          uint32_t destination, uint8_t protocol, uint8_t tos,
                          uint32_t payload_length)
{
  if (stack->link_header) {
    memset(out + ETH_DST, 0, 6); /* ip_transmit fills it in */
    memcpy(out + ETH_SRC, stack->config.mac, 6);
    store_be16(out + ETH_TYPE, ETH_TYPE_IPV4);
    out += ETH_HEADER;
  }
  memset(out, 0, IP_HEADER);
  store_be16(out, (uint16_t)(0x4500 | tos));
  store_be16(out + IP_TOTAL_LENGTH, (uint16_t)(IP_HEADER + payload_length));
  /* The packet is never fragmented, so its identification may be zero (RFC 6864, 4.1). */
  store_be16(out + IP_FRAGMENT, IP_DONT_FRAGMENT);
  out[IP_TTL_BYTE] = IP_DEFAULT_TTL;
  out[IP_PROTOCOL] = protocol;
  store_address(out + IP_SRC, source);
  store_address(out + IP_DST, destination);
  uint16_t sum = header_checksum(out);
  memcpy(out + IP_SUM, &sum, 2);
  return stack->link_header + IP_HEADER;
}

uint32_t ip_next_hop(const struct harp_stack *stack, uint32_t destination)
{
  const struct harp_stack_config *config = &stack->config;
  uint32_t mask = config->prefix == 0 ? 0 : __builtin_bswap32(0xffffffffu << (32 - config->prefix));
  if (((destination ^ config->address) & mask) == 0) {
    return destination;
  }
  return config->gateway;
}

int ip_transmit(struct harp_stack *stack, struct harp_neighbour *neighbour,
                struct harp_tx_frame *frame)
{
  if (stack->link_header) {
    bool fresh = neighbour->state == NEIGHBOUR_REACHABLE && stack->now < neighbour->deadline;
    if (!fresh && !neighbour_usable(stack, neighbour)) {
      neighbour_queue(stack, neighbour, frame);
      return 0;
    }
    memcpy((uint8_t *)frame->iov[0].iov_base + ETH_DST, neighbour->mac, 6);
  }
  int result = link_transmit(stack, frame);
  stack->port_full |= result == -EAGAIN;
  return result;
}
