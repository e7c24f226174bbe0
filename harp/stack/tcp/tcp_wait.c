/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of the times that a sender waits. */
#include "harp/stack/tcp/tcp_wait.h"

#include "harp/stack/stack_state.h"

static uint64_t since(const struct harp_tcp *tcp) { return tcp->stack->now - tcp->waits.since; }

void tcp_wait_change(struct harp_tcp *tcp, enum tcp_wait wait)
{
  static const uint16_t counters[] = {
      [TCP_WAIT_ACK] = HARP_COUNTER_tcp_ack_wait_ns,
      [TCP_WAIT_WINDOW] = HARP_COUNTER_tcp_window_wait_ns,
      [TCP_WAIT_DEVICE] = HARP_COUNTER_tcp_device_wait_ns,
  };
  enum tcp_wait before = tcp->waits.now;
  if (before != TCP_WAIT_NOTHING) {
    tcp->waits.sum[before] += since(tcp);
    tcp->stack->counters[counters[before]] += since(tcp);
  }
  tcp->waits.since = tcp->stack->now;
  tcp->waits.now = wait;
}

uint64_t tcp_wait_time(const struct harp_tcp *tcp, enum tcp_wait wait)
{
  return tcp->waits.sum[wait] + (tcp->waits.now == wait ? since(tcp) : 0);
}
