/* SPDX-License-Identifier: Apache-2.0 */
/* Address conflict detection (RFC 5227). */
#ifndef HARP_STACK_ADDRESS_H
#define HARP_STACK_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_stack;
/* Whether an ARP packet (its first byte behind the link header) shows another host that has our
 * address or, while ours is tentative, wants it. */
bool address_conflicts(const struct harp_stack *stack, const uint8_t *arp);
/* Such a packet came from mac. */
void address_conflict(struct harp_stack *stack, const uint8_t *mac);

#endif
