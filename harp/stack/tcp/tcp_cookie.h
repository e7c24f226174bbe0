/* SPDX-License-Identifier: Apache-2.0 */
/* SYN cookies: handshakes without state (RFC 4987). */
#ifndef HARP_STACK_TCP_COOKIE_H
#define HARP_STACK_TCP_COOKIE_H

struct harp_listener;
struct harp_segment;
struct harp_tcp;
enum tcp_cookie {
  COOKIE_NONE,    /* the listener has no valid cookie outstanding */
  COOKIE_REFUSED, /* the listener has one, but this acknowledgement holds none: it may be a later
                     segment of a peer that got a cookie, so it gets no RST */
  COOKIE_TAKEN,
};
/* Answers a SYN with a cookie. Rate limited. */
void tcp_cookie_send(struct harp_listener *listener, const struct harp_segment *syn);
/* Checks the cookie that an acknowledgement carries and sets up *tcp from it. *tcp: the half-open
 * connection of the same four-tuple; NULL: creates one in state CLOSED. */
enum tcp_cookie tcp_cookie_take(struct harp_listener *listener, const struct harp_segment *segment,
                                struct harp_tcp **tcp);

#endif
