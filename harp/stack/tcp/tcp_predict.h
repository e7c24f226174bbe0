/* SPDX-License-Identifier: Apache-2.0 */
/* Header prediction: a fast path for the expected next segment of an established connection. */
#ifndef HARP_STACK_TCP_PREDICT_H
#define HARP_STACK_TCP_PREDICT_H

#include <stdbool.h>

struct harp_rx_frame;
struct harp_stack;
/* Processes the frame if it is the expected segment. false: it is not, and no state has changed. */
bool tcp_predicted(struct harp_stack *stack, const struct harp_rx_frame *frame);

#endif
