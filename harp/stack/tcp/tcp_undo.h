/* SPDX-License-Identifier: Apache-2.0 */
/* Taking back a needless reaction to a loss (RFC 3522, 3708, 4015, 5682). */
#ifndef HARP_STACK_TCP_UNDO_H
#define HARP_STACK_TCP_UNDO_H

#include <stdint.h>

struct harp_ack_result;
struct harp_tcp;

/* Recovery begins: what an undo would restore. */
void tcp_undo_remember(struct harp_tcp *tcp);
/* An acknowledgement: takes the reaction back if it shows that nothing was lost. */
void tcp_undo_if_spurious(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* A DSACK: the same, once every retransmission of this recovery is reported needless. */
void tcp_undo_on_dsack(struct harp_tcp *tcp, const struct harp_ack_result *result);

/* length bytes are sent again. */
void tcp_undo_on_retransmit(struct harp_tcp *tcp, uint32_t length);
/* Recovery is over: for one more RTO a DSACK may still show that it was needless. */
void tcp_undo_recovery_ended(struct harp_tcp *tcp);

#endif
