/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a socket, and the functions that the socket files share.
 *
 *   socket.c          the table; opening, names and closing
 *   socket_data.c     data: send, recv, poll, ioctl
 *   socket_ready.c    the list of ready sockets
 *   socket_options.c  getsockopt and setsockopt
 */
#ifndef HARP_STACK_SOCKET_H
#define HARP_STACK_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack.h"
#include "harp/stack/flow.h"

struct harp_socket {
  struct harp_socket_table *table;
  struct harp_tcp *tcp; /* NULL: not connected, or closed */
  struct harp_listener *listener;
  int next;              /* next in the free list or the accept queue; -1: end */
  int queue, queue_last; /* a listener's accept queue; -1: empty */
  uint32_t queued, backlog;
  struct harp_packet *unread; /* unread data of a closed connection */
  bool fin_received;          /* the peer of the closed connection had sent its FIN */
  bool used, connecting, connected, write_shut, read_shut, ended;
  bool nodelay, cork, keepalive;
  bool waiting;                   /* in an accept queue: the user does not know its number yet */
  bool writable;                  /* the last reported state */
  bool starved;                   /* send found no free packet buffer */
  bool listed;                    /* in the ready list */
  int ready_previous, ready_next; /* in the ready list; -1: none */
  struct linger linger;
  uint16_t port;             /* bound, host order; 0: not bound */
  uint32_t address;          /* as bound, network order */
  struct harp_endpoint peer; /* of the connection, also after it has closed */
  int error;                 /* SO_ERROR, positive */
  uint32_t sndbuf, user_timeout_ms;
  struct harp_flow_syn syn;
  const char *congestion; /* a name of harp_congestion_name */
  uint32_t keep_idle_s, keep_interval_s, keep_count;
};

/* All sockets of a stack. */
struct harp_socket_table {
  struct harp_stack *stack;
  const struct harp_stack_config *config;
  uint32_t count;
  int free;                    /* head of the free list; -1: none */
  int ready_first, ready_last; /* sockets that harp_tcp_ready will list; -1: none */
  bool starved;                /* a socket waits for memory to send from */
  struct harp_socket sockets[];
};

/* NULL: no such socket. */
static inline struct harp_socket *socket_get(const struct harp_stack *stack, int number)
{
  struct harp_socket_table *table = harp_stack_sockets(stack);
  if (number < 0 || (uint32_t)number >= table->count || !table->sockets[number].used ||
      table->sockets[number].waiting) {
    return NULL;
  }
  return &table->sockets[number];
}

/* Returns the pending error, negative, and clears it (SO_ERROR). */
static inline int socket_take_error(struct harp_socket *s)
{
  int error = s->error;
  s->error = 0;
  return -error;
}

static inline void socket_apply_keepalive(struct harp_socket *s)
{
  if (s->tcp) {
    harp_flow_set_keepalive(s->tcp, s->keepalive ? s->keep_idle_s * 1000 : 0,
                            s->keep_interval_s * 1000, s->keep_count);
  }
}

static inline int socket_number(const struct harp_socket *s)
{
  return (int)(s - s->table->sockets);
}

/* socket_data.c */
uint32_t socket_readable(const struct harp_socket *s); /* bytes */
/* Whether poll reports POLLOUT. An open connection needs a third of its send buffer and a packet
 * buffer free. */
bool socket_writable(const struct harp_socket *s);

/* socket_ready.c */
/* Adds the socket to the ready list, unless it is there or in an accept queue. */
void socket_ready(struct harp_socket *s);
void socket_unlist(struct harp_socket *s);
/* Call after the free send space may have changed. */
void socket_room_changed(struct harp_socket *s);

/* socket.c */
/* config: valid as long as the stack. NULL: no memory. */
struct harp_socket_table *sockets_create(struct harp_stack *stack,
                                         const struct harp_stack_config *config);
void sockets_destroy(struct harp_socket_table *table);

#endif
