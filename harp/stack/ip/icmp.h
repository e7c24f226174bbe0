/* SPDX-License-Identifier: Apache-2.0 */
/* ICMP input and output. */
#ifndef HARP_STACK_ICMP_H
#define HARP_STACK_ICMP_H

#include <stdint.h>

struct harp_stack;
/* Takes a packet to our address. ip: its IPv4 header. header_length: bytes of that header; length:
 * bytes that can be read from there, payload included. It never keeps the packet. */
void icmp_input(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                uint32_t length);
/* Answers such a packet, unless the limit of messages per second is reached. code: ICMP_CODE_*. */
void icmp_send_unreachable(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                           uint32_t length, uint8_t code);

#endif
