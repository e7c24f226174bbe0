/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own address: it is probed before it is used, and defended with moderation (RFC 5227).
 *
 * The stack says what it hears; how many probes there are, and how long one waits between
 * them, is the engine's to decide. Packets with our own hardware address are no conflict: a
 * switch may return them, and a process that ended a moment ago has sent the like.
 */

/* RFC 5227, 1.1: a conflict within so long of another is not answered by a defence. */
#include "harp/stack/ip/address.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/headers.h"
#include "harp/stack/ip/arp.h"
#include "harp/stack/stack_state.h"

#define DEFEND_INTERVAL (10 * NS_PER_S)

void harp_stack_probe(struct harp_stack *stack)
{
  if (stack->link_header) {
    COUNT(stack, arp_requests_out);
    arp_send(stack, ARP_REQUEST, arp_broadcast, 0, arp_nobody, stack->config.address);
  }
}

int harp_stack_use_address(struct harp_stack *stack)
{
  if (stack->tentative && stack->conflicted) {
    return -EADDRINUSE;
  }
  stack->tentative = false;
  return 0;
}

void harp_stack_announce(struct harp_stack *stack)
{
  if (stack->link_header && !stack->io.only_asks && !stack->tentative) {
    stack->announced = true;
    COUNT(stack, arp_requests_out);
    arp_send(stack, ARP_REQUEST, arp_broadcast, stack->config.address, arp_nobody,
             stack->config.address);
  }
}

bool harp_stack_conflict(const struct harp_stack *stack, uint8_t mac[6])
{
  memcpy(mac, stack->conflict_mac, 6);
  return stack->conflicted;
}

bool address_conflicts(const struct harp_stack *stack, const uint8_t *arp)
{
  uint32_t sender = load_address(arp + ARP_SENDER_IP);
  bool claim = sender == stack->config.address;
  /* RFC 5227, 2.1.1: who probes for it at the same time wants it as much as we do. */
  bool probe = stack->tentative && sender == 0 && load_be16(arp + ARP_OPERATION) == ARP_REQUEST &&
               load_address(arp + ARP_TARGET_IP) == stack->config.address;
  return (claim || probe) && memcmp(arp + ARP_SENDER_MAC, stack->config.mac, 6) != 0;
}

/* RFC 5227, 2.4 (b), but that the address is kept: connections live on it. One announcement tells
 * neighbours whose it is. If that does not end the conflict, we say no more: two hosts that both
 * insist would only fight. */
void address_conflict(struct harp_stack *stack, const uint8_t *mac)
{
  bool again = stack->conflicted && stack->now - stack->conflict_heard < DEFEND_INTERVAL;
  COUNT(stack, arp_conflicts);
  memcpy(stack->conflict_mac, mac, 6);
  stack->conflicted = true;
  stack->conflict_heard = stack->now;
  if (stack->announced && !again) {
    harp_stack_announce(stack);
  }
}
