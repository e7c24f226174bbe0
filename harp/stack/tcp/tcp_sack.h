/* SPDX-License-Identifier: Apache-2.0 */
/* The scoreboard: SACK (RFC 2018), DSACK (RFC 2883). */
#ifndef HARP_STACK_TCP_SACK_H
#define HARP_STACK_TCP_SACK_H

struct harp_ack_result;
struct harp_segment;
struct harp_tcp;
/* Processes the SACK blocks of an acknowledgement, after its cumulative part. */
void tcp_sack_input(struct harp_tcp *tcp, const struct harp_segment *segment,
                    struct harp_ack_result *result);
/* The peer has discarded SACKed data (reneging; RFC 2018, 8): all of it counts as in flight again.
 */
void tcp_sack_forget(struct harp_tcp *tcp);

#endif
