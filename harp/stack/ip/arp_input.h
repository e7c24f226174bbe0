/* SPDX-License-Identifier: Apache-2.0 */
/* ARP input (RFC 826, RFC 5227). */
#ifndef HARP_STACK_ARP_INPUT_H
#define HARP_STACK_ARP_INPUT_H

#include <stdint.h>

struct harp_stack;

/* frame: from the Ethernet header on. length: bytes; fewer than a packet's are counted and dropped.
 * It never keeps the frame. */
void arp_input(struct harp_stack *stack, const uint8_t *frame, uint32_t length);

#endif
