/* SPDX-License-Identifier: Apache-2.0 */
/* Address conflict detection (RFC 5227). */
#ifndef HARP_STACK_ADDRESS_H
#define HARP_STACK_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_stack;
/* Returns whether an ARP packet shows that another host uses our address or, while ours is
 * tentative, probes for it. arp: the first byte after the Ethernet header. */
bool address_conflicts(const struct harp_stack *stack, const uint8_t *arp);
/* Records a conflict with the host mac, and defends the address (RFC 5227, 2.4 b). */
void address_conflict(struct harp_stack *stack, const uint8_t *mac);

#endif
