/* SPDX-License-Identifier: Apache-2.0 */
/* SEGMENT ARRIVES: RFC 9293, 3.10.7, in its order. */
#ifndef HARP_STACK_TCP_INPUT_H
#define HARP_STACK_TCP_INPUT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_segment;
struct harp_stack;
struct harp_tcp;
void tcp_input(struct harp_stack *stack, struct harp_segment *segment);
/* When to acknowledge payload that has arrived, segment_size bytes in each of its
 * segments if it is merged ones, else 0; pushed: with the PSH flag; at_once: it was out of order.
 */
void tcp_schedule_ack(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                      bool at_once);

/* Sends what that has made due at once, to others than HARP hosts: RFC 5681, 4.2, asks for one for
 * every second segment, and of one for a whole burst a small window's sender may never hear. */
void tcp_ack_non_harp_peer(struct harp_tcp *tcp);

#endif
