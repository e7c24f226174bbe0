/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a hole may be reordering before it counts as a loss: RACK's
 * reordering window (RFC 8985, 6.2, steps 3 and 4).
 *
 * The RFC's window begins with a quarter of the shortest round trip and grows
 * by another with each round trip in which a DSACK tells of a needless copy.
 * How late segments came can be seen sooner: by what filled a hole by itself,
 * and by the echo of an original that its copy did not overtake. The window
 * is twice that, if it is more.
 */
#include "harp/stack/internal.h"

enum { REO_PERSIST = 16 }; /* recoveries that a wider window lasts (RFC 8985, 6.2, step 4) */

uint64_t tcp_reordering_window(const struct harp_tcp *tcp) {
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

static void seen(struct harp_tcp *tcp) {
  if (!tcp->reordering_seen) {
    tcp->reordering_seen = true;
    COUNT(tcp->stack, tcp_reordering);
  }
  tcp->reo_persist = REO_PERSIST;
}

void tcp_reordering_detect(struct harp_tcp *tcp, const struct harp_record *record) {
  if (seq_lt(record->seq, tcp->high_sacked)) {
    uint64_t age = tcp_record_age(tcp, record);
    tcp->reo_late = HARP_MAX(tcp->reo_late, age - HARP_MIN(age, tcp->rack_rtt));
    seen(tcp);
  }
}

void tcp_reordering_overtaken(struct harp_tcp *tcp, const struct harp_record *record) {
  /* When its copy was sent, it was late by the window, or by more. */
  uint64_t late = tcp_reordering_window(tcp) + tcp_record_age(tcp, record);
  tcp->reo_late = HARP_MAX(tcp->reo_late, late);
  seen(tcp);
}

/* Once a round trip: one wrong guess may make many copies. By time, not by sequence numbers, which
 * wrap between two rare reports. */
void tcp_reordering_reported(struct harp_tcp *tcp) {
  seen(tcp);
  if (tcp->stack->now < tcp->dsack_round_end) {
    return;
  }
  tcp->dsack_round_end = tcp->stack->now + tcp->srtt;
  if (tcp->reo_multiplier < UINT8_MAX) {
    tcp->reo_multiplier++;
  }
}

void tcp_reordering_recovered(struct harp_tcp *tcp) {
  if (tcp->reo_persist && --tcp->reo_persist == 0) {
    tcp->reo_multiplier = 0;
    tcp->reo_late = 0;
  }
}
