/* SPDX-License-Identifier: Apache-2.0 */
/* SYN cookies: handshakes without memory (RFC 4987). */
#ifndef HARP_STACK_TCP_COOKIE_H
#define HARP_STACK_TCP_COOKIE_H

struct harp_listener;
struct harp_segment;
struct harp_tcp;
enum tcp_cookie {
  COOKIE_NONE,    /* no cookie of the listener's is out */
  COOKIE_REFUSED, /* some are, but this is none that holds: it may be a later segment of one that
                   * was given a cookie, so it gets no reset */
  COOKIE_TAKEN,
};
/* Answers a SYN by a cookie, at most so many a second. */
void tcp_cookie_send(struct harp_listener *listener, const struct harp_segment *syn);
/* Gives a connection what the cookie says that an acknowledgement brings. *tcp: the handshake
 * under way between the same ports; NULL: a connection is made, in state CLOSE. */
enum tcp_cookie tcp_cookie_take(struct harp_listener *listener, const struct harp_segment *segment,
                                struct harp_tcp **tcp);

#endif
