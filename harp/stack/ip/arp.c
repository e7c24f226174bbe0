/* SPDX-License-Identifier: Apache-2.0 */
/* ARP output (RFC 826). */
#include "harp/stack/ip/arp.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/link_output.h"
#include "harp/stack/stack_state.h"

const uint8_t arp_broadcast[6] = {255, 255, 255, 255, 255, 255};
const uint8_t arp_nobody[6];
const uint8_t arp_fixed[ARP_OPERATION] = {0, 1, 8, 0, 6, 4};

void arp_send(struct harp_stack *stack, uint16_t operation, const uint8_t *to_mac,
              uint32_t sender_ip, const uint8_t *target_mac, uint32_t target_ip)
{
  uint8_t out[ETH_HEADER + ARP_LENGTH];
  memcpy(out + ETH_DST, to_mac, 6);
  memcpy(out + ETH_SRC, stack->config.mac, 6);
  store_be16(out + ETH_TYPE, ETH_TYPE_ARP);
  uint8_t *arp = out + ETH_HEADER;
  memcpy(arp, arp_fixed, sizeof arp_fixed);
  store_be16(arp + ARP_OPERATION, operation);
  memcpy(arp + ARP_SENDER_MAC, stack->config.mac, 6);
  store_address(arp + ARP_SENDER_IP, sender_ip);
  memcpy(arp + ARP_TARGET_MAC, target_mac, 6);
  store_address(arp + ARP_TARGET_IP, target_ip);
  struct iovec iov = {out, sizeof out};
  struct harp_tx_frame frame = {
      .iov = &iov, .iov_count = 1, .header_length = sizeof out, .length = sizeof out};
  link_transmit(stack, &frame);
}
