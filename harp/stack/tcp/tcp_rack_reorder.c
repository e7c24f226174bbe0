/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a hole may be reordering before it counts as a loss: RACK's
 * reordering window (RFC 8985, 6.2, steps 3 and 4).
 *
 * The RFC's window begins with a quarter of the shortest round trip and grows
 * by another with each round trip in which a DSACK tells of a needless copy.
 * How late segments come can be seen sooner: by what fills a hole by itself,
 * and by the echo of an original while its copy is on its way. The window is
 * twice that, if that is more than the first quarter, and the steps besides.
 */
#include "harp/stack/stack_state.h"

enum {
  REO_PERSIST = 16, /* recoveries that a step lasts without a DSACK (RFC 8985, 6.2, step 4) */
  LATE_FADES = 8,   /* of what was seen, the part that each recovery takes away */
};

uint64_t tcp_rack_reo_wnd(const struct harp_tcp *tcp)
{
  if (!tcp->reordering_seen &&
      (tcp->recovery != RECOVERY_NONE || tcp->sacked_out >= TCP_DUPTHRESH * tcp->mss)) {
    return 0;
  }
  if (tcp->min_rtt == UINT64_MAX) {
    return 0;
  }
  uint64_t step = tcp->min_rtt / 4;
  return HARP_MIN(HARP_MAX(step, 2 * tcp->reo_late) + tcp->reo_multiplier * step, tcp->srtt);
}

uint64_t tcp_rack_late(const struct harp_tcp *tcp, const struct harp_record *record)
{
  if (seq_ge(record->seq, tcp->high_sacked)) {
    return 0;
  }
  uint64_t age = tcp_record_age(tcp, record);
  return age > tcp->rack_rtt ? age - tcp->rack_rtt : 1;
}

void tcp_rack_reordering_seen(struct harp_tcp *tcp, uint64_t late)
{
  if (!tcp->reordering_seen) {
    tcp->reordering_seen = true;
    COUNT(tcp->stack, tcp_reordering);
  }
  tcp->reorderings++;
  tcp->reo_late = HARP_MAX(tcp->reo_late, late);
}

void tcp_rack_original_acked_after_retransmit(struct harp_tcp *tcp)
{
  /* Any later than a round trip, and the answer may be to the copy; and after a timeout a pause
   * is the likelier reason. */
  uint64_t since_copy = tcp_record_age(tcp, tcp->records);
  if (tcp->recovery == RECOVERY_FAST && since_copy < tcp->min_rtt) {
    tcp_rack_reordering_seen(tcp, tcp->reo_waited + since_copy);
  }
}

/* Once a round trip: one wrong guess may make many copies. By time, not by sequence numbers, which
 * wrap between two rare reports. */
void tcp_rack_dsack_reported(struct harp_tcp *tcp)
{
  tcp_rack_reordering_seen(tcp, 0);
  tcp->reo_persist = REO_PERSIST;
  if (tcp->stack->now < tcp->dsack_round_end) {
    return;
  }
  tcp->dsack_round_end = tcp->stack->now + tcp->srtt;
  if (tcp->reo_multiplier < UINT8_MAX) {
    tcp->reo_multiplier++;
  }
}

void tcp_rack_recovered(struct harp_tcp *tcp)
{
  tcp->reo_late -= tcp->reo_late / LATE_FADES;
  if (tcp->reo_persist && --tcp->reo_persist == 0) {
    tcp->reo_multiplier = 0;
  }
}
