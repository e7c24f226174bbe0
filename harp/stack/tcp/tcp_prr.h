/* SPDX-License-Identifier: Apache-2.0 */
/* Proportional Rate Reduction (RFC 9937). */
#ifndef HARP_STACK_TCP_PRR_H
#define HARP_STACK_TCP_PRR_H

#include <stdint.h>

struct harp_ack_result;
struct harp_tcp;
/* Fast recovery begins. The result is empty if a timer detected the loss. */
void tcp_prr_begin(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* Sets cwnd in fast recovery. lost: bytes in flight that have just been marked lost. */
void tcp_prr_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result, uint32_t lost);

/* length bytes of new or retransmitted data were sent (prr_out). */
void tcp_prr_on_send(struct harp_tcp *tcp, uint32_t length);

#endif
