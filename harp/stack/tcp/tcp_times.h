/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times and numbers of attempts of TCP's timers, in one table. Those that an application may set
 * (user timeout, keepalive, initial, least and largest RTO, delayed ACK) stand in the connection or
 * in struct harp_stack_config.
 */
#ifndef HARP_STACK_TCP_TIMES_H
#define HARP_STACK_TCP_TIMES_H

#include "harp/stack/stack_state.h"

/* Opening a connection (RFC 9293, 3.5; RFC 6298, 5.7). */
enum { SYN_RETRIES = 6 };
/* A peer may be stopped; as long as Linux's SYN-ACKs take. */
#define HANDSHAKE_LEAST (63 * NS_PER_S)
/* The longest pause between SYNs of a connection with a user timeout: its peer may be stopped. */
#define SYN_RTO_MAX (2 * NS_PER_S)
/* A handshake that has lasted so long makes room where there is none: longer than round trips
 * are. A newcomer is better off so than with a cookie: it keeps all options, and a lost answer
 * is repeated. Only a flood turns a backlog over faster. */
#define HALF_OPEN_LEAST_NS NS_PER_S

/* Retransmission (RFC 6298). */
enum {
  DATA_RETRIES = 15,    /* with backoff, minutes: RFC 1122, 4.2.3.5 R2 */
  TCP_BACKOFF_MAX = 16, /* doublings of a timeout */
};
/* The longest backed-off timeout between HARP hosts. */
#define HARP_PEER_RTO_MAX (500 * NS_PER_MS)

/* The tail loss probe (RFC 8985, 7.2). */
/* A peer with a delayed-ACK timer may hold back the answer to a lone segment for so long. */
#define PEER_DELAYED_ACK (200 * NS_PER_MS)
/* Scheduling noise of two busy hosts; a probe before that is mostly needless. */
#define PROBE_FLOOR_HARP_PEER (2 * NS_PER_MS)
/* Other hosts may hold an acknowledgement back until their reader has come to read: Linux's own
 * senders grant them two ticks, 8 ms. */
#define PROBE_FLOOR (8 * NS_PER_MS)

/* Closing (RFC 9293, 3.6). */
#define TIME_WAIT_NS (60 * NS_PER_S)
/* FIN-WAIT-2 without an owner, and closed connections whose owner has not read everything. */
#define FIN_WAIT_2_NS (60 * NS_PER_S)

#endif
