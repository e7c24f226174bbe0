/* SPDX-License-Identifier: Apache-2.0 */
/* Link and IPv4 input. */
#ifndef HARP_STACK_IP_INPUT_H
#define HARP_STACK_IP_INPUT_H

struct harp_rx_frame;
struct harp_stack;

/* Takes a frame of the stack's link type, and counts it if it is dropped. It never keeps the frame.
 */
void ip_input(struct harp_stack *stack, const struct harp_rx_frame *frame);

#endif
