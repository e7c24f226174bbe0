/* SPDX-License-Identifier: Apache-2.0 */
/* ICMP input and output. */
#ifndef HARP_STACK_ICMP_H
#define HARP_STACK_ICMP_H

#include <stdint.h>

struct harp_stack;
void icmp_input(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                uint32_t length);
void icmp_send_unreachable(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                           uint32_t length, uint8_t code);

#endif
