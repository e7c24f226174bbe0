/* SPDX-License-Identifier: Apache-2.0 */
/* Loss detection and recovery: RACK-TLP (RFC 8985), RTO (RFC 6298). */
#ifndef HARP_STACK_TCP_RECOVERY_H
#define HARP_STACK_TCP_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

struct harp_ack_result;
struct harp_tcp;
/* An acknowledgement was processed: detects losses, begins or ends recovery, updates cwnd and
 * timers. */
void tcp_recovery_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* The RTO has expired: marks all unSACKed data lost, or all data if the peer has reneged. Its
 * retransmission is the next output's. */
void tcp_recovery_on_rto(struct harp_tcp *tcp);
/* TIMER_RACK has expired: detects losses. */
void tcp_recovery_on_rack_timer(struct harp_tcp *tcp);

#endif
