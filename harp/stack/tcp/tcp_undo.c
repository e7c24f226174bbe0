/* SPDX-License-Identifier: Apache-2.0 */
/* Taking back a reaction to a loss that was none: by DSACK (RFC 3708), Eifel (RFC 3522, 4015),
 * F-RTO (RFC 5682). */
#include "harp/stack/tcp/tcp_undo.h"

#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_sndq.h"

void tcp_undo_remember(struct harp_tcp *tcp)
{
  tcp->undo_cwnd = tcp->cwnd;
  tcp->undo_ssthresh = tcp->ssthresh;
  tcp->undo_retransmits = 0;
  tcp->undo_start = tcp->snd_una;
  tcp->undo_possible = true;
  tcp->growth_due = 0;
}

static void undo(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_undos);
  tcp->cwnd = HARP_MAX(tcp->cwnd, tcp->undo_cwnd);
  tcp->ssthresh = HARP_MAX(tcp->ssthresh, tcp->undo_ssthresh);
  tcp->cc.ops->on_undo(tcp);
  tcp->undo_possible = false;
  tcp->recovery = RECOVERY_NONE;
}

/* Nothing was lost but time (the peer's host was busy): the rest of that flight is on its way
 * too. It was sent before all that is in flight, and so stands before it. */
static void timeout_was_spurious(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_spurious);
  for (struct harp_record *record = tcp->lost_first; record; record = record->newer) {
    record->lost = false;
    tcp->lost_out -= record->end - record->seq;
  }
  if (tcp->lost_first) {
    tcp->lost_last->newer = tcp->oldest;
    *(tcp->oldest ? &tcp->oldest->older : &tcp->newest) = tcp->lost_last;
    tcp->oldest = tcp->lost_first;
    tcp->lost_first = tcp->lost_last = NULL;
  }
  undo(tcp);
}

/* Whether the acknowledgement shows that recovery began without need, in time: after a timeout
 * by what was never sent again (RFC 5682, with SACK), always by timestamps (RFC 3522; in fast
 * recovery when nothing else that was sent again is still out, RFC 4015). */
void tcp_undo_if_spurious(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->undo_possible) {
    return;
  }
  if (tcp->recovery == RECOVERY_RTO && (result->first_copy || (result->original && tcp->sack))) {
    timeout_was_spurious(tcp);
  } else if (tcp->recovery == RECOVERY_FAST && result->first_copy && tcp->retrans_out == 0) {
    COUNT(tcp->stack, tcp_spurious);
    undo(tcp);
  }
}

/* What a DSACK tells of was sent again in this recovery, or in the one that has just ended. */
static bool is_of_recovery(const struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (tcp->recovery == RECOVERY_NONE &&
      (seq_gt(result->dsack_end, tcp->undo_end) || tcp->stack->now > tcp->undo_deadline)) {
    return false;
  }
  return seq_ge(result->dsack_end - result->dsack, tcp->undo_start);
}

void tcp_undo_on_dsack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  COUNT(tcp->stack, tcp_spurious);
  tcp_rack_dsack_reported(tcp);
  if (tcp->undo_possible && tcp->undo_retransmits && is_of_recovery(tcp, result)) {
    tcp->undo_retransmits -= HARP_MIN(tcp->undo_retransmits, result->dsack);
    if (tcp->undo_retransmits == 0) {
      undo(tcp);
    }
  }
}
