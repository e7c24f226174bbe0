/* SPDX-License-Identifier: Apache-2.0 */
/* A listener's state. */
#ifndef HARP_STACK_TCP_LISTENER_H
#define HARP_STACK_TCP_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/list.h"
#include "harp/stack/stack_state.h"

struct harp_flow_ops;
struct harp_stack;
struct harp_listener {
  struct harp_listener *hash_next;
  struct harp_stack *stack;
  const struct harp_flow_ops *ops;
  void *user;
  uint32_t backlog, pending;
  struct harp_list half_open; /* the pending connections, the oldest first */
  uint32_t rcvbuf, user_mss;
  uint8_t rcv_wscale, tos;
  uint64_t cookie_period; /* of the latest cookie */
  uint16_t port;
  bool cookies; /* the listener has sent a cookie */
};

static inline struct harp_listener **listener_bucket(const struct harp_stack *stack, uint16_t port)
{
  return &stack->listeners[port * stack->bucket_multiplier >> stack->listener_shift];
}

enum {
  COOKIE_PERIOD_SHIFT = 36
}; /* a cookie is valid in its period of 2^36 ns (69 s) and the next */

/* An acknowledgement without a connection may belong to a handshake whose state this listener has
 * dropped. It gets no RST during the next one to two periods of 69 s. */
static inline void tcp_cookie_expect(struct harp_listener *listener)
{
  listener->cookie_period = listener->stack->now >> COOKIE_PERIOD_SHIFT;
  listener->cookies = true;
}

#endif
