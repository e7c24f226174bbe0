/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of connections. */
#ifndef HARP_STACK_TCP_TIMER_H
#define HARP_STACK_TCP_TIMER_H

#include <stdint.h>

#include "harp/stack/tcp/tcp.h"

struct harp_stack;
/* when: ns; TIMER_OFF stops the timer. */
void tcp_timer_set(struct harp_tcp *tcp, enum harp_timer timer, uint64_t when);
/* The connection's place in the heap is corrected when it reaches the top. */
static inline void tcp_timer_stop(struct harp_tcp *tcp, enum harp_timer timer)
{
  tcp->timers[timer] = TIMER_OFF;
}
/* Returns the earliest deadline, ns; TIMER_OFF: none. Corrects late keys, so it changes the heap.
 */
uint64_t tcp_timers_next(struct harp_stack *stack);
/* Stops all timers and removes the connection from the heap. */
void tcp_timers_remove(struct harp_tcp *tcp);
/* Starts the timer for the SYN, the RTO or the persist timer, by the state. Stops it if neither
 * data nor a FIN is outstanding or unsent. */
void tcp_arm_rto(struct harp_tcp *tcp);
/* Starts TIMER_TLP if a probe would be useful, else stops it. */
void tcp_arm_tail_probe(struct harp_tcp *tcp);

#endif
