/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sender with unacknowledged data waits for, and how long: the parts of tcpi_busy_time, as
 * in Linux ("chronographs", tcp_output.c). The sums tell a slow peer from a slow network.
 */
#ifndef HARP_STACK_TCP_WAIT_H
#define HARP_STACK_TCP_WAIT_H

#include "harp/stack/tcp/tcp.h"

/* Adds the time since the last change to the old state, and begins the new one. */
void tcp_wait_change(struct harp_tcp *tcp, enum tcp_wait wait);

/* Called at the end of each output, when tcp_arm_rto finds no data, and when the connection ends.
 */
static inline void tcp_wait_for(struct harp_tcp *tcp, enum tcp_wait wait)
{
  if (tcp->waits.now != wait) {
    tcp_wait_change(tcp, wait);
  }
}

/* Returns the time that the sender has waited for this so far, ns. */
uint64_t tcp_wait_time(const struct harp_tcp *tcp, enum tcp_wait wait);

#endif
