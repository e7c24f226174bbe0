/* SPDX-License-Identifier: Apache-2.0 */
/* Undo of a spurious reaction to a loss: DSACK (RFC 3708), Eifel (RFC 3522, RFC 4015), F-RTO (RFC
 * 5682). */
#include "harp/stack/tcp/tcp_undo.h"

#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_sndq.h"

void tcp_undo_remember(struct harp_tcp *tcp)
{
  tcp->undo.retransmits = 0;
  tcp->undo.start = tcp->snd.una;
  tcp->undo.possible = true;
}

static void undo(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_undos);
  tcp_cwnd_undo(tcp);
  tcp->undo.possible = false;
  tcp->recovery = RECOVERY_NONE;
}

/* The timeout was spurious (the peer's host was busy): the rest of that flight is in flight too. It
 * was sent before the other records in flight, so it goes to the front of the list by send time. */
static void undo_timeout(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_spurious);
  for (struct harp_record *record = tcp->flight.lost_first; record; record = record->newer) {
    record->state = RECORD_IN_FLIGHT;
    tcp->flight.lost_out -= record->end - record->seq;
  }
  if (tcp->flight.lost_first) {
    tcp->flight.lost_last->newer = tcp->flight.oldest;
    *(tcp->flight.oldest ? &tcp->flight.oldest->older
                         : &tcp->flight.newest) = tcp->flight.lost_last;
    tcp->flight.oldest = tcp->flight.lost_first;
    tcp->flight.lost_first = tcp->flight.lost_last = NULL;
  }
  undo(tcp);
}

/* Undoes recovery if this acknowledgement shows that nothing was lost. After a timeout: data
 * arrived that was never retransmitted (RFC 5682, with SACK), or the timestamp echo is older than
 * the first retransmission (RFC 3522). In fast recovery: only the timestamp echo counts, and no
 * other retransmission may be in flight (RFC 4015). */
void tcp_undo_if_spurious(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->undo.possible) {
    return;
  }
  if (tcp->recovery == RECOVERY_RTO &&
      (result->original_by_echo || (result->original && tcp->sack))) {
    undo_timeout(tcp);
  } else if (tcp->recovery == RECOVERY_FAST && result->original_by_echo &&
             tcp->flight.retrans_out == 0) {
    COUNT(tcp->stack, tcp_spurious);
    undo(tcp);
  }
}

/* Whether a DSACK reports data that was retransmitted in this recovery, or in the one that has just
 * ended. */
static bool is_of_recovery(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (tcp->recovery == RECOVERY_NONE &&
      (seq_gt(result->dsack_end, tcp->undo.end) || tcp->stack->now > tcp->undo.deadline)) {
    return false;
  }
  return seq_ge(result->dsack_end - result->dsack, tcp->undo.start);
}

void tcp_undo_on_dsack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  COUNT(tcp->stack, tcp_spurious);
  tcp_rack_dsack_reported(tcp);
  if (tcp->undo.possible && tcp->undo.retransmits && is_of_recovery(tcp, result)) {
    tcp->undo.retransmits -= HARP_MIN(tcp->undo.retransmits, result->dsack);
    if (tcp->undo.retransmits == 0) {
      undo(tcp);
    }
  }
}

void tcp_undo_on_retransmit(struct harp_tcp *tcp, uint32_t length)
{
  if (tcp->undo.retransmits == 0) {
    tcp->undo.stamp = tcp_timestamp(tcp);
  }
  tcp->undo.retransmits += length;
}

void tcp_undo_recovery_ended(struct harp_tcp *tcp)
{
  tcp->undo.end = tcp->snd.nxt;
  tcp->undo.deadline = tcp->stack->now + tcp->rtt.rto;
}
