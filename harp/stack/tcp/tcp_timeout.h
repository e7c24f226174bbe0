/* SPDX-License-Identifier: Apache-2.0 */
/* Expired timers. */
#ifndef HARP_STACK_TCP_TIMEOUT_H
#define HARP_STACK_TCP_TIMEOUT_H

#include <stdint.h>

struct harp_stack;

void tcp_timers_run(struct harp_stack *stack);
/* The engine did not run for pause ns. This time does not count as silence of a peer. */
void tcp_account_pause(struct harp_stack *stack, uint64_t pause);

#endif
