/* SPDX-License-Identifier: Apache-2.0 */
/* Frames to the port, counted. */
#ifndef HARP_STACK_LINK_OUTPUT_H
#define HARP_STACK_LINK_OUTPUT_H

struct harp_stack;
struct harp_tx_frame;

/* 0, or the negative errno of struct harp_stack_io's transmit. */
int link_transmit(struct harp_stack *stack, struct harp_tx_frame *frame);

#endif
