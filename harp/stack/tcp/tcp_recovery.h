/* SPDX-License-Identifier: Apache-2.0 */
/* Loss detection and recovery: RACK-TLP (RFC 8985), RTO (RFC 6298). */
#ifndef HARP_STACK_TCP_RECOVERY_H
#define HARP_STACK_TCP_RECOVERY_H

#include <stdint.h>

struct harp_ack_result;
struct harp_record;
struct harp_tcp;
void tcp_recovery_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result);
void tcp_recovery_on_rto(struct harp_tcp *tcp);
void tcp_recovery_on_rack_timer(struct harp_tcp *tcp);

#endif
