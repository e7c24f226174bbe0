/* SPDX-License-Identifier: Apache-2.0 */
/* What one acknowledgement tells. */
#ifndef HARP_STACK_TCP_ACK_RESULT_H
#define HARP_STACK_TCP_ACK_RESULT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_ack_result {
  uint32_t delivered; /* bytes newly acknowledged, cumulatively or selectively */
  uint32_t una_before;
  uint32_t dsack;     /* bytes reported as received twice, */
  uint32_t dsack_end; /* and the end of that block */
  uint64_t rtt;       /* ns, of the newest record that was sent only once (Karn); 0: none */
  bool was_limited;   /* the congestion window was in full use */
  uint64_t late;      /* ns that something came after what was sent behind it; 0: nothing did */
  bool copies;        /* some of it had been sent again: the rest may have come long ago */
  bool original;      /* what was given up as lost arrived, sent only once */
  bool first_copy;    /* by its timestamp: what was sent again arrived as it was sent first */
  bool timed;         /* there is an echo: it advances, with a timestamp */
  uint32_t echo;      /* of the segment that filled the hole at its head */
  bool duplicate;     /* a duplicate acknowledgement, without SACK */
};

#endif
