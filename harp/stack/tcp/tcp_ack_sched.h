/* SPDX-License-Identifier: Apache-2.0 */
/* When to acknowledge: RFC 5681, 4.2; RFC 1122, 4.2.3.2. */
#ifndef HARP_STACK_TCP_ACK_SCHED_H
#define HARP_STACK_TCP_ACK_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/tcp/tcp.h"

struct harp_stack;

/* The next flush acknowledges, by a segment of its own if no data goes out. */
void tcp_ack_at_once(struct harp_tcp *tcp);
/* Payload has arrived: length bytes, in segments of segment_size if they were merged, else 0;
 * pushed: with the PSH flag; at_once: out of order, a duplicate, or it filled a hole. */
void tcp_ack_schedule(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                      bool at_once);
/* More payload of a burst that an owed acknowledgement will cover: it is no lone short message any
 * more. false: none is owed yet. */
static inline bool tcp_ack_extend(struct harp_tcp *tcp)
{
  bool owed = tcp->ack.state != ACK_IDLE && tcp->dirty;
  if (owed) {
    tcp->ack.state = ACK_DUE;
  }
  return owed;
}
/* Whether an acknowledgement should go out now, within the burst, and not at its end: to peers that
 * are not HARP hosts. RFC 5681, 4.2, asks for one for every second segment; a sender with a small
 * window may never see the second one of a burst that is acknowledged once. */
bool tcp_ack_waits_for_nothing(const struct harp_tcp *tcp);
/* A segment has carried rcv_nxt: nothing is owed any more. */
void tcp_ack_sent(struct harp_tcp *tcp);
/* At a flush: holds an ACK_HELD acknowledgement until the next one. false: it is due now. */
bool tcp_ack_hold(struct harp_tcp *tcp);
/* The connections whose acknowledgements the flush before has held, as a list by ack.next. */
struct harp_tcp *tcp_ack_take_held(struct harp_stack *stack);
/* Takes the first off that list; returns the next. */
struct harp_tcp *tcp_ack_unlist(struct harp_tcp *tcp);
/* The peer is a HARP host: it is acknowledged by bursts from now on. */
void tcp_ack_set_harp_peer(struct harp_tcp *tcp);

#endif
