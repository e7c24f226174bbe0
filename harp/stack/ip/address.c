/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own address: the engine probes it before use, and the stack defends it (RFC 5227).
 *
 * The stack reports conflicts. The engine decides the number of probes and their interval. ARP
 * packets with our own hardware address are no conflict: a switch may return them, or a process
 * that has just ended may have sent them.
 */

#include "harp/stack/ip/address.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/arp.h"
#include "harp/stack/stack_state.h"

/* RFC 5227, 1.1: no defence against a conflict within this time of another one. */
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
  /* RFC 5227, 2.1.1: another host's probe for the address at the same time is a conflict too. */
  bool probe = stack->tentative && sender == 0 && load_be16(arp + ARP_OPERATION) == ARP_REQUEST &&
               load_address(arp + ARP_TARGET_IP) == stack->config.address;
  return (claim || probe) && memcmp(arp + ARP_SENDER_MAC, stack->config.mac, 6) != 0;
}

/* RFC 5227, 2.4 (b), except that the stack keeps the address, because connections use it. It sends
 * one announcement. It sends no more if the conflict continues, or two hosts would send
 * announcements without end. */
void address_conflict(struct harp_stack *stack, const uint8_t *mac)
{
  bool again = stack->conflicted && stack->now - stack->last_conflict < DEFEND_INTERVAL;
  COUNT(stack, arp_conflicts);
  memcpy(stack->conflict_mac, mac, 6);
  stack->conflicted = true;
  stack->last_conflict = stack->now;
  if (stack->announced && !again) {
    harp_stack_announce(stack);
  }
}
