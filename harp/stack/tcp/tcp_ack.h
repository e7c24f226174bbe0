/* SPDX-License-Identifier: Apache-2.0 */
/* Processing of an acknowledgement: RTT sample, send queue, send window. */
#ifndef HARP_STACK_TCP_ACK_H
#define HARP_STACK_TCP_ACK_H

#include <stdbool.h>
#include <stdint.h>

struct harp_record;
struct harp_segment;
struct harp_tcp;
/* Processes an acknowledgement whose number is at most SND.NXT. */
void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment);
/* Updates SND.WND, SND.WL1 and SND.WL2 (RFC 9293, 3.10.7.4). */
void tcp_update_window(struct harp_tcp *tcp, const struct harp_segment *segment);

#endif
