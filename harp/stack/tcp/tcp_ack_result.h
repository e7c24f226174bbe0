/* SPDX-License-Identifier: Apache-2.0 */
/* The information in one acknowledgement. */
#ifndef HARP_STACK_TCP_ACK_RESULT_H
#define HARP_STACK_TCP_ACK_RESULT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_ack_result {
  uint32_t delivered; /* bytes newly acknowledged, cumulatively or by SACK */
  uint32_t una_before;
  uint32_t dsack;     /* length of the DSACK block, bytes; 0: none */
  uint32_t dsack_end; /* end of the DSACK block */
  uint64_t rtt;     /* RTT sample, ns, of the last record that was sent only once (Karn); 0: none */
  bool was_limited; /* cwnd was the limit before this acknowledgement */
  uint64_t late;    /* ns: largest lateness of reordered data; 0: no reordering */
  bool retransmitted; /* it covers retransmitted data; the other data may have arrived long ago */
  bool original;      /* data marked lost arrived, without a retransmission */
  bool original_by_echo; /* Eifel: the original arrived, and not its retransmission */
  bool timed;            /* it advances SND.UNA and carries a timestamp */
  uint32_t echo;         /* TSecr: the timestamp of the segment that filled the hole at SND.UNA */
  bool duplicate;        /* a duplicate acknowledgement, without SACK */
};

#endif
