/* SPDX-License-Identifier: Apache-2.0 */
/* Passes frames to the port and counts them. */
#ifndef HARP_STACK_LINK_OUTPUT_H
#define HARP_STACK_LINK_OUTPUT_H

#include "harp/counters.h"
#include "harp/frame.h"
#include "harp/stack/flow.h"
#include "harp/stack/stack_state.h"

/* 0, or the negative errno of struct harp_stack_io's transmit. Inline, because it runs for every
 * segment. */
static inline int link_transmit(struct harp_stack *stack, struct harp_tx_frame *frame)
{
  int result = stack->io.transmit(stack->io.user, frame);
  if (result == 0) {
    COUNT(stack, tx_frames);
    COUNT_N(stack, tx_bytes, frame->length);
  }
  return result;
}

#endif
