/* SPDX-License-Identifier: Apache-2.0 */
/* Undo of a spurious reaction to a loss (RFC 3522, RFC 3708, RFC 4015, RFC 5682). */
#ifndef HARP_STACK_TCP_UNDO_H
#define HARP_STACK_TCP_UNDO_H

#include <stdint.h>

struct harp_ack_result;
struct harp_tcp;

/* Recovery begins. A later acknowledgement may undo it. */
void tcp_undo_remember(struct harp_tcp *tcp);
/* Undoes the reaction if this acknowledgement shows that nothing was lost. */
void tcp_undo_if_spurious(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* Undoes the reaction once DSACKs have reported every retransmission of this recovery as spurious.
 */
void tcp_undo_on_dsack(struct harp_tcp *tcp, const struct harp_ack_result *result);

/* length bytes were retransmitted. */
void tcp_undo_on_retransmit(struct harp_tcp *tcp, uint32_t length);
/* Recovery has ended. A DSACK may still cause an undo for one more RTO. */
void tcp_undo_recovery_ended(struct harp_tcp *tcp);

#endif
