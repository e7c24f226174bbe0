/* SPDX-License-Identifier: Apache-2.0 */
/* RACK: loss detection by time (RFC 8985, 6). */
#ifndef HARP_STACK_TCP_RACK_H
#define HARP_STACK_TCP_RACK_H

#include <stdint.h>

struct harp_record;
struct harp_tcp;
struct harp_ack_result;
/* How long, ns, what was sent before something that has arrived may take longer than that. */
uint64_t tcp_rack_reo_wnd(const struct harp_tcp *tcp);
/* Something has come so late, ns. */
void tcp_rack_reordering_seen(struct harp_tcp *tcp, uint64_t late);
/* The original of the first record, which was sent again, fills the hole at snd_una. */
void tcp_rack_original_acked_after_retransmit(struct harp_tcp *tcp);
/* A DSACK tells that a copy was needless. */
void tcp_rack_dsack_reported(struct harp_tcp *tcp);
/* A recovery has ended: what was learned is forgotten by and by. */
void tcp_rack_recovered(struct harp_tcp *tcp);

/* The stretch of a record up to end, in flight or lost, has arrived (RFC 8985, 6.2, step 2): the
 * counters of what is in flight, and the result. */
void tcp_rack_update(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                     struct harp_ack_result *result);
/* Marks what was sent well before something that has arrived (6.2, step 5). Returns when to look
 * again, ns; TIMER_OFF: no need. */
uint64_t tcp_rack_detect_loss(struct harp_tcp *tcp);
/* A record is lost: it waits to be sent again. */
void tcp_mark_lost(struct harp_tcp *tcp, struct harp_record *record);

#endif
