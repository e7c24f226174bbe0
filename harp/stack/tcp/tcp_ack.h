/* SPDX-License-Identifier: Apache-2.0 */
/* An acknowledgement: round trips, reclaim, window. */
#ifndef HARP_STACK_TCP_ACK_H
#define HARP_STACK_TCP_ACK_H

#include <stdbool.h>
#include <stdint.h>

struct harp_record;
struct harp_segment;
struct harp_tcp;
/* Takes an acknowledgement that is within what was sent. */
void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment);
void tcp_update_window(struct harp_tcp *tcp, const struct harp_segment *segment);

#endif
