/* SPDX-License-Identifier: Apache-2.0 */
/* ARP input (RFC 826, RFC 5227). */
#include "harp/stack/ip/arp_input.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/address.h"
#include "harp/stack/ip/arp.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/limit.h"
#include "harp/stack/stack_state.h"

enum {
  /* Replies to hosts that are not neighbours. A storm of requests must not cause one of replies. */
  REPLIES_PER_SECOND = 10000,
};

/* A known neighbour always gets a reply. */
static bool may_reply(struct harp_stack *stack, uint32_t address, const uint8_t *mac)
{
  if (neighbour_is(stack, address, mac)) {
    return true;
  }
  bool may = limit_allows(&stack->arp_limit, stack->now, REPLIES_PER_SECOND);
  COUNT_N(stack, arp_replies_limited, !may);
  return may;
}

static void answer(struct harp_stack *stack, uint32_t address, const uint8_t *mac)
{
  if (!stack->io.only_asks && !stack->tentative) {
    COUNT(stack, arp_replies_out);
    arp_send(stack, ARP_REPLY, mac, stack->config.address, mac, address);
  }
}

void arp_input(struct harp_stack *stack, const uint8_t *frame, uint32_t length)
{
  if (length < ETH_HEADER + ARP_LENGTH) {
    COUNT(stack, rx_drop_truncated);
    return;
  }
  const uint8_t *arp = frame + ETH_HEADER;
  uint16_t operation = load_be16(arp + ARP_OPERATION);
  if (memcmp(arp, arp_fixed, sizeof arp_fixed) != 0 ||
      (operation != ARP_REQUEST && operation != ARP_REPLY)) {
    COUNT(stack, rx_drop_malformed);
    return;
  }
  const uint8_t *sender_mac = arp + ARP_SENDER_MAC;
  if (sender_mac[0] & 1) { /* a multicast sender: our reply would go to many hosts */
    COUNT(stack, rx_drop_malformed);
    return;
  }
  uint32_t sender = load_address(arp + ARP_SENDER_IP);
  uint32_t target = load_address(arp + ARP_TARGET_IP);
  if (address_conflicts(stack, arp)) {
    address_conflict(stack, sender_mac);
    return;
  }
  if (sender == stack->config.address) {
    COUNT(stack, rx_drop_source);
    return;
  }
  if (target == stack->config.address && operation == ARP_REQUEST) {
    COUNT(stack, arp_requests_in);
    if (may_reply(stack, sender, sender_mac)) {
      neighbour_expect(stack, sender); /* the sender is about to send to us and needs answers */
      answer(stack, sender, sender_mac);
    }
  } else if (operation == ARP_REPLY) {
    COUNT(stack, arp_replies_in);
  } else {
    COUNT(stack, rx_drop_not_ours);
  }
  if (sender != 0) {
    neighbour_learn(stack, sender, sender_mac);
  }
}
