/* SPDX-License-Identifier: Apache-2.0 */
/* Proportional Rate Reduction (RFC 9937). */
#ifndef HARP_STACK_TCP_PRR_H
#define HARP_STACK_TCP_PRR_H

#include <stdint.h>

#include <stdbool.h>

struct harp_ack_result;
struct harp_tcp;
/* Fast recovery begins. The result is empty if a timer detected the loss. */
void tcp_prr_begin(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* Sets cwnd in fast recovery. safe: RFC 9937's SafeACK: SND.UNA advances, and no further loss was
 * detected. */
void tcp_prr_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result, bool safe);

/* length bytes of new or retransmitted data were sent (prr_out). */
void tcp_prr_on_send(struct harp_tcp *tcp, uint32_t length);

#endif
