/* SPDX-License-Identifier: Apache-2.0 */
/* Proportional Rate Reduction (RFC 9937). */
#ifndef HARP_STACK_TCP_PRR_H
#define HARP_STACK_TCP_PRR_H

#include <stdint.h>

#include <stdbool.h>

struct harp_ack_result;
struct harp_tcp;
/* Fast recovery begins, by this acknowledgement, or by a timer, with an empty result. */
void tcp_prr_begin(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* Sets the congestion window in fast recovery. safe: it advances, and shows no further loss. */
void tcp_prr_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result, bool safe);

/* length bytes go out, new or again (prr_out). */
void tcp_prr_on_send(struct harp_tcp *tcp, uint32_t length);

#endif
