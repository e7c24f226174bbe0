/* SPDX-License-Identifier: Apache-2.0 */
/* Expired timers. */
#ifndef HARP_STACK_TCP_TIMEOUT_H
#define HARP_STACK_TCP_TIMEOUT_H

#include <stdint.h>

struct harp_stack;

void tcp_timers_run(struct harp_stack *stack);
/* The host did not run for so many ns: that was no silence of any peer's. */
void tcp_account_pause(struct harp_stack *stack, uint64_t pause);

#endif
