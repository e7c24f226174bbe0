/* SPDX-License-Identifier: Apache-2.0 */
/* The expected next segment of an established connection, by a short path. */
#ifndef HARP_STACK_TCP_PREDICT_H
#define HARP_STACK_TCP_PREDICT_H

#include <stdbool.h>

struct harp_rx_frame;
struct harp_stack;
/* Takes a frame if it is what was to be expected; false: nothing has happened. */
bool tcp_predicted(struct harp_stack *stack, const struct harp_rx_frame *frame);

#endif
