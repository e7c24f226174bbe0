/* SPDX-License-Identifier: Apache-2.0 */
/* The tail loss probe (RFC 8985, 7); tcp_timer.h arms it. */
#ifndef HARP_STACK_TCP_TLP_H
#define HARP_STACK_TCP_TLP_H

struct harp_ack_result;
struct harp_tcp;

/* TIMER_TLP has expired: sends new data, or the last segment again (7.3). The owner, asked for
 * data, may close. */
void tcp_tlp_on_timer(struct harp_tcp *tcp);
/* A retransmission timeout ends the probe's episode, and none is armed. */
void tcp_tlp_cancel(struct harp_tcp *tcp);
/* While a probe is out: ends its episode if this acknowledgement does (7.4). */
void tcp_tlp_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result);

#endif
