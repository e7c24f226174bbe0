/* SPDX-License-Identifier: Apache-2.0 */
/* The scoreboard: SACK (RFC 2018), DSACK (RFC 2883). */
#ifndef HARP_STACK_TCP_SACK_H
#define HARP_STACK_TCP_SACK_H

struct harp_ack_result;
struct harp_segment;
struct harp_tcp;
/* Takes the blocks of an acknowledgement that the records have been told of. */
void tcp_sack_input(struct harp_tcp *tcp, const struct harp_segment *segment,
                    struct harp_ack_result *result);
/* The peer took back what it had sacked (RFC 2018, 8): all of it is in flight. */
void tcp_sack_forget(struct harp_tcp *tcp);

#endif
