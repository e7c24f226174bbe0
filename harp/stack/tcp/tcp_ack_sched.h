/* SPDX-License-Identifier: Apache-2.0 */
/* The time of acknowledgements (RFC 5681, 4.2; RFC 1122, 4.2.3.2). */
#ifndef HARP_STACK_TCP_ACK_SCHED_H
#define HARP_STACK_TCP_ACK_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/tcp/tcp.h"

struct harp_stack;

/* The next flush sends an acknowledgement: on a data segment, or else on a bare ACK. An
 * acknowledgement that is already held stays held. */
void tcp_ack_at_once(struct harp_tcp *tcp);
/* Payload of length bytes has arrived. segment_size: segment size of a merged frame, else 0.
 * pushed: the PSH flag is set. at_once: the payload is out of order, a duplicate, or fills a hole.
 */
void tcp_ack_on_payload(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                        bool at_once);
/* More payload of a burst has arrived. An acknowledgement that is due will cover this payload, too.
 * false: no acknowledgement is due yet. */
static inline bool tcp_ack_extend(struct harp_tcp *tcp)
{
  bool owed = tcp->ack.state != ACK_IDLE && tcp->dirty;
  if (owed && !tcp->ack.yields) {
    tcp->ack.state = ACK_DUE;
  }
  return owed;
}
/* Whether the acknowledgement must go out now, before the end of the burst. That is so for peers
 * that are not HARP hosts. RFC 5681, 4.2 requires one ACK for every second full-sized segment. One
 * ACK for a burst would slow a sender with a small cwnd. */
static inline bool tcp_ack_is_due_within_burst(const struct harp_tcp *tcp)
{
  /* Data goes out at the end of this burst. */
  bool with_data = tcp_has_unsent(tcp);
  return tcp->ack.state != ACK_IDLE && !tcp->harp_peer && !with_data;
}
/* TIMER_DELAYED_ACK has expired. */
void tcp_ack_timer(struct harp_tcp *tcp);
/* A segment has carried RCV.NXT: no acknowledgement is due. */
void tcp_ack_sent(struct harp_tcp *tcp);
/* At a flush: defers an ACK_HELD acknowledgement to the next flush. false: it is due now. */
bool tcp_ack_hold(struct harp_tcp *tcp);
/* Takes the list of connections whose acknowledgements the previous flush has deferred, linked by
 * ack.next. */
struct harp_tcp *tcp_ack_take_held(struct harp_stack *stack);
/* Removes the first connection from that list; returns the next. */
struct harp_tcp *tcp_ack_unlist(struct harp_tcp *tcp);
/* Forgets the quick ACKs that are still due after a loss. */
void tcp_ack_clear_quick(struct harp_tcp *tcp);

#endif
