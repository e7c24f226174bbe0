/* SPDX-License-Identifier: Apache-2.0 */
/* A socket's own state, shared by the calls (socket.c) and the options (socket_options.c). */
#ifndef HARP_STACK_SOCKET_H
#define HARP_STACK_SOCKET_H

#include "harp/stack/internal.h"

struct harp_socket {
  struct harp_stack *stack;
  struct harp_tcp *tcp;           /* NULL: not connected, or over */
  struct harp_listener *listener;
  int next;                       /* free list, or the listener's queue; -1: end */
  int queue, queue_last;          /* a listener's sockets to accept; -1: none */
  uint32_t queued, backlog;
  struct harp_packet *unread;     /* what a connection that is over has left to be read */
  bool heard_end;                 /* its peer had said all it would */
  bool used, connecting, connected, write_shut, read_shut, ended;
  bool nodelay, cork, keepalive;
  struct linger linger;
  uint16_t port; /* bound, host order; 0: not bound */
  struct harp_endpoint peer; /* of a connection, also of one that is over */
  int error;     /* SO_ERROR, positive */
  uint32_t sndbuf, rcvbuf, mss, user_timeout_ms;
  uint32_t keep_idle_s, keep_interval_s, keep_count;
};

/* NULL: no such socket. */
static inline struct harp_socket *socket_get(struct harp_stack *stack, int number) {
  if (number < 0 || (uint32_t)number >= stack->socket_count || !stack->sockets[number].used) {
    return NULL;
  }
  return &stack->sockets[number];
}

/* The error that waits, negative, told once. */
static inline int socket_take_error(struct harp_socket *s) {
  int error = s->error;
  s->error = 0;
  return -error;
}

static inline void socket_apply_keepalive(struct harp_socket *s) {
  if (s->tcp) {
    harp_flow_set_keepalive(s->tcp, s->keepalive ? s->keep_idle_s * 1000 : 0,
                            s->keep_interval_s * 1000, s->keep_count);
  }
}

#endif
