/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP's timeouts and retry counts. The values that an application can set (user timeout,
 * keepalive, initial RTO, RTO floor and limit, delayed ACK) are in struct harp_tcp or struct
 * harp_stack_config.
 */
#ifndef HARP_STACK_TCP_TIMES_H
#define HARP_STACK_TCP_TIMES_H

#include "harp/stack/stack_state.h"

/* Opening a connection (RFC 9293, 3.5; RFC 6298, 5.7). */
enum { SYN_RETRIES = 6 };
/* Minimum duration of a handshake attempt, because a peer may be stopped. Linux retransmits
 * SYN-ACKs for as long. */
#define HANDSHAKE_LEAST (63 * NS_PER_S)
/* Longest interval between SYNs of a connection with a user timeout, because its peer may be
 * stopped. */
#define SYN_RTO_MAX (2 * NS_PER_S)
/* Minimum age of a half-open connection that is dropped for a new one. It exceeds all usual
 * round-trip times. A new connection with state is better than a SYN cookie: it keeps all its
 * options, and its SYN-ACK is retransmitted. Only a SYN flood fills a backlog in less time. */
#define HALF_OPEN_LEAST_NS NS_PER_S

/* Retransmission (RFC 6298). */
enum {
  DATA_RETRIES = 15,    /* with backoff several minutes (R2 of RFC 1122, 4.2.3.5) */
  TCP_BACKOFF_MAX = 16, /* most doublings of a timeout */
  /* The doublings that last beyond an acknowledgement of new data, until a sample of the round trip
   * ends them. An outage of minutes must not delay the next timeout by minutes. */
  TCP_BACKOFF_KEPT = 3,
};
/* Limit of the backed-off RTO between HARP hosts. */
#define HARP_PEER_RTO_MAX (500 * NS_PER_MS)

/* The tail loss probe (RFC 8985, 7.2). */
/* A peer's delayed-ACK timer may delay the ACK of a single segment for this time. */
#define PEER_DELAYED_ACK (200 * NS_PER_MS)
/* Scheduling delays of two busy hosts. An earlier probe is mostly spurious. */
#define PROBE_FLOOR_HARP_PEER (2 * NS_PER_MS)
/* Other hosts may delay an ACK until their application reads. Linux's senders allow two ticks, 8
 * ms. */
#define PROBE_FLOOR (8 * NS_PER_MS)

/* Acknowledgements (RFC 1122, 4.2.3.2). */
/* Longest wait for an ACK that several segments share. It is short beside PROBE_FLOOR_HARP_PEER. */
#define SHARED_ACK_WAIT (500 * NS_PER_US)
/* A sender waits for a shared ACK if it has sent nothing for this time within a message. */
#define SENDER_PAUSE (SHARED_ACK_WAIT / 2)
/* No ACK may be shared if the floor of the RTO is lower. A peer whose callers have stopped sends
 * the ACK up to 1.8 ms late. */
#define SHARED_ACK_RTO_MIN (2 * NS_PER_MS)
/* No ACK may be shared if the last sample of the round trip is older. */
enum { SHARED_ACK_SAMPLES_MS = 10 };

/* Closing (RFC 9293, 3.6). */
#define TIME_WAIT_NS (60 * NS_PER_S)
/* Timeout of FIN-WAIT-2 without an owner, and interval of checks for unread data after the close.
 */
#define FIN_WAIT_2_NS (60 * NS_PER_S)

#endif
