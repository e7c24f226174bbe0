/* SPDX-License-Identifier: Apache-2.0 */
/* ARP packets out (RFC 826). */
#ifndef HARP_STACK_ARP_H
#define HARP_STACK_ARP_H

#include <stdint.h>

#include "harp/headers.h"

struct harp_stack;

extern const uint8_t arp_broadcast[6], arp_nobody[6];
/* The bytes with which each ARP packet for Ethernet and IPv4 begins, in front of the operation. */
extern const uint8_t arp_fixed[ARP_OPERATION];
/* Sends one ARP packet; its sender hardware address is ours. IP addresses in network order. */
void arp_send(struct harp_stack *stack, uint16_t operation, const uint8_t *to_mac,
              uint32_t sender_ip, const uint8_t *target_mac, uint32_t target_ip);

#endif
