/* SPDX-License-Identifier: Apache-2.0 */
/* SYN cookies: handshakes without state (RFC 4987). */
#ifndef HARP_STACK_TCP_COOKIE_H
#define HARP_STACK_TCP_COOKIE_H

struct harp_listener;
struct harp_segment;
struct harp_tcp;
enum tcp_cookie {
  COOKIE_NONE,    /* the segment has a SYN, or the listener has no valid cookie outstanding */
  COOKIE_REFUSED, /* the listener has one, so this segment gets no RST. It may be a later segment of
                     a peer that got a cookie. Or it holds a valid cookie, but the accept queue is
                     full, or no connection block is free: the peer repeats it. */
  COOKIE_TAKEN,   /* *tcp is set up; the caller completes the handshake with this segment */
};
/* Answers a SYN with a cookie. Rate limited. */
void tcp_cookie_send(struct harp_listener *listener, const struct harp_segment *syn);
/* Checks the cookie that an acknowledgement carries and sets up *tcp from it. *tcp: the half-open
 * connection of the same four-tuple; NULL: creates one in state CLOSED. */
enum tcp_cookie tcp_cookie_take(struct harp_listener *listener, const struct harp_segment *segment,
                                struct harp_tcp **tcp);

#endif
