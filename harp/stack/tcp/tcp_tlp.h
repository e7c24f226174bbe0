/* SPDX-License-Identifier: Apache-2.0 */
/* The tail loss probe (RFC 8985, 7); tcp_timer.h arms it. */
#ifndef HARP_STACK_TCP_TLP_H
#define HARP_STACK_TCP_TLP_H

struct harp_ack_result;
struct harp_tcp;

/* TIMER_TLP has expired: sends new data, or retransmits the last segment (7.3). It may call pull,
 * and the owner may close the connection there. */
void tcp_tlp_on_timer(struct harp_tcp *tcp);
/* A retransmission timeout ends the TLP episode and stops the timer. */
void tcp_tlp_cancel(struct harp_tcp *tcp);
/* While a probe is in flight: checks whether this acknowledgement ends the episode (7.4). */
void tcp_tlp_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result);

/* A bare ACK has repeated SND.UNA and the window. */
void tcp_tlp_on_duplicate(struct harp_tcp *tcp);

#endif
