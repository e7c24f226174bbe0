/* SPDX-License-Identifier: Apache-2.0 */
/* SEGMENT ARRIVES: RFC 9293, 3.10.7, in its order. */
#ifndef HARP_STACK_TCP_INPUT_H
#define HARP_STACK_TCP_INPUT_H

struct harp_segment;
struct harp_stack;
/* Takes a segment whose headers and checksum are right. Its connection may be closed on return. */
void tcp_input(struct harp_stack *stack, struct harp_segment *segment);

#endif
