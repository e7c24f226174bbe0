/* SPDX-License-Identifier: Apache-2.0 */
/* RACK: loss detection by time (RFC 8985, 6). */
#ifndef HARP_STACK_TCP_RACK_H
#define HARP_STACK_TCP_RACK_H

#include <stdint.h>

struct harp_record;
struct harp_tcp;
struct harp_ack_result;
/* Records that reordered data came `late` ns late. */
void tcp_rack_reordering_seen(struct harp_tcp *tcp, uint64_t late);
/* The original of the first record has filled the hole at SND.UNA, although the record was
 * retransmitted before. */
void tcp_rack_original_acked_after_retransmit(struct harp_tcp *tcp);
/* A DSACK shows that a retransmission was spurious. */
void tcp_rack_dsack_reported(struct harp_tcp *tcp);
/* A recovery has ended: reduces the learned lateness by one eighth. Resets the window's multiplier
 * after 16 recoveries without a DSACK. */
void tcp_rack_recovered(struct harp_tcp *tcp);

/* The bytes of a record before end have arrived; the record was in flight or lost (RFC 8985, 6.2,
 * step 2). Updates the counters of data in flight, and the result. */
void tcp_rack_update(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                     struct harp_ack_result *result);
/* Marks each record lost that was sent more than a reordering window before delivered data (6.2,
 * step 5). Returns the time of the next check, ns; TIMER_OFF: none. */
uint64_t tcp_rack_detect_loss(struct harp_tcp *tcp);
/* Marks a record lost and queues it for retransmission. */
void tcp_mark_lost(struct harp_tcp *tcp, struct harp_record *record);

#endif
