/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that arrive at a listener (RFC 9293, 3.10.7.2). */
#ifndef HARP_STACK_TCP_LISTEN_H
#define HARP_STACK_TCP_LISTEN_H

struct harp_listener;
struct harp_segment;
struct harp_tcp;

/* Returns the new connection if the segment acknowledges a SYN cookie, else NULL. old: the
 * connection in TIME-WAIT that the segment may replace; NULL: none. It ends only if the listener
 * takes the segment. */
struct harp_tcp *tcp_listen_input(struct harp_listener *listener,
                                  const struct harp_segment *segment, struct harp_tcp *old);

#endif
