/* SPDX-License-Identifier: Apache-2.0 */
/* Frames to the port, counted. */
#include "harp/stack/ip/link_output.h"

#include "harp/frame.h"
#include "harp/stack/stack_state.h"

int link_transmit(struct harp_stack *stack, struct harp_tx_frame *frame)
{
  int result = stack->io.transmit(stack->io.user, frame);
  if (result == 0) {
    COUNT(stack, tx_frames);
    COUNT_N(stack, tx_bytes, frame->length);
  }
  return result;
}
