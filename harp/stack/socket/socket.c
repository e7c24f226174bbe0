/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, names and closing of sockets, a small layer over flows. */
#include "harp/stack/socket/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"

static const struct harp_flow_ops socket_ops;

/* --- The table --- */

struct harp_socket_table *sockets_create(struct harp_stack *stack,
                                         const struct harp_stack_config *config)
{
  uint32_t count = 2 * config->max_connections + 16;
  struct harp_socket_table *table = calloc(1, sizeof *table + count * sizeof *table->sockets);
  if (!table) {
    return NULL;
  }
  table->stack = stack;
  table->config = config;
  table->count = count;
  for (uint32_t i = 0; i < count; i++) {
    table->sockets[i].next = i + 1 < count ? (int)i + 1 : -1;
  }
  table->free = 0;
  table->ready_first = table->ready_last = -1;
  return table;
}

void sockets_destroy(struct harp_socket_table *table) { free(table); }

static int allocate(struct harp_socket_table *table)
{
  int number = table->free;
  if (number < 0) {
    return -EMFILE;
  }
  struct harp_socket *s = &table->sockets[number];
  const struct harp_stack_config *config = table->config;
  table->free = s->next;
  *s = (struct harp_socket){
      .table = table,
      .next = -1,
      .queue = -1,
      .queue_last = -1,
      .ready_previous = -1,
      .ready_next = -1,
      .used = true,
      .sndbuf = config->sndbuf,
      .syn.rcvbuf = config->rcvbuf,
      .syn.rcv_wscale = (uint8_t)HARP_MAX(config->window_scale, 0),
      .congestion = config->cc,
      .keep_idle_s = 7200, /* RFC 1122, 4.2.3.6 */
      .keep_interval_s = 75,
      .keep_count = 9,
  };
  return number;
}

int harp_tcp_socket(struct harp_stack *stack) { return allocate(harp_stack_sockets(stack)); }

static void release(struct harp_socket *s)
{
  socket_unlist(s);
  harp_packets_free(s->table->stack, s->unread);
  s->unread = NULL;
  s->used = false;
  s->next = s->table->free;
  s->table->free = socket_number(s);
}

/* --- Flow callbacks --- */

static void apply_options(struct harp_socket *s)
{
  harp_flow_set_nodelay(s->tcp, s->nodelay);
  harp_flow_set_cork(s->tcp, s->cork);
  harp_flow_set_rcvbuf(s->tcp, s->syn.rcvbuf);
  harp_flow_set_tos(s->tcp, s->syn.tos);
  harp_flow_set_congestion(s->tcp, s->congestion);
  harp_flow_set_timeout(s->tcp, s->user_timeout_ms);
  socket_apply_keepalive(s);
}

static void on_established(void *user, struct harp_tcp *tcp)
{
  struct harp_socket *s = user;
  s->connecting = false;
  s->connected = true;
  s->writable = true;
  socket_ready(s);
}

static void on_readable(void *user, struct harp_tcp *tcp) { socket_ready(user); }

static void on_acked(void *user, struct harp_tcp *tcp, uint32_t bytes)
{
  socket_room_changed(user);
}

static void on_closed(void *user, struct harp_tcp *tcp, int error)
{
  struct harp_socket *s = user;
  s->tcp = NULL;
  /* Acknowledged data stays readable, however the connection ended. */
  s->unread = harp_flow_take(tcp);
  s->fin_received = harp_flow_fin_received(tcp);
  s->connecting = false;
  s->ended = true;
  s->error = -error;
  socket_ready(s);
}

/* The accept queue holds one connection more than the backlog, as in Linux. */
static bool on_full(void *user)
{
  const struct harp_socket *server = user;
  return server->queued > server->backlog || server->table->free < 0;
}

static int on_accept(void *user, struct harp_tcp *tcp)
{
  struct harp_socket *server = user;
  struct harp_socket_table *table = server->table;
  int number = allocate(table);
  if (number < 0) {
    return number;
  }
  struct harp_socket *s = &table->sockets[number];
  int keep = s->next;
  *s = *server; /* options are inherited */
  s->next = keep;
  s->listener = NULL;
  s->queue = s->queue_last = -1;
  s->queued = 0;
  s->error = 0;
  s->ended = false; /* set by an earlier connection attempt of the listener */
  s->listed = false;
  s->ready_previous = s->ready_next = -1;
  s->waiting = s->writable = true;
  s->tcp = tcp;
  s->address = table->config->address;
  s->peer = harp_flow_peer(tcp);
  s->connected = true;
  harp_flow_attach(tcp, &socket_ops, s);
  apply_options(s);
  if (server->queue < 0) {
    server->queue = number;
  } else {
    table->sockets[server->queue_last].next = number;
  }
  server->queue_last = number;
  server->queued++;
  socket_ready(server);
  return 0;
}

static const struct harp_flow_ops socket_ops = {
    .accept = on_accept,
    .full = on_full,
    .established = on_established,
    .acked = on_acked,
    .readable = on_readable,
    .closed = on_closed,
};

/* --- Opening --- */

static int read_address(const struct sockaddr *address, socklen_t length,
                        struct harp_endpoint *endpoint)
{
  struct sockaddr_in in;
  if (length < sizeof in) {
    return -EINVAL;
  }
  memcpy(&in, address, sizeof in);
  if (in.sin_family != AF_INET) {
    return -EAFNOSUPPORT;
  }
  endpoint->address = in.sin_addr.s_addr;
  endpoint->port = __builtin_bswap16(in.sin_port);
  return 0;
}

static void write_address(struct harp_endpoint endpoint, struct sockaddr *address,
                          socklen_t *length)
{
  struct sockaddr_in in = {
      .sin_family = AF_INET,
      .sin_port = __builtin_bswap16(endpoint.port),
      .sin_addr.s_addr = endpoint.address,
  };
  memcpy(address, &in, HARP_MIN((size_t)*length, sizeof in));
  *length = sizeof in;
}

int harp_tcp_bind(struct harp_stack *stack, int number, const struct sockaddr *address,
                  socklen_t length)
{
  struct harp_socket *s = socket_get(stack, number);
  struct harp_endpoint local;
  if (!s) {
    return -EBADF;
  }
  int result = read_address(address, length, &local);
  if (result != 0) {
    return result;
  }
  if (s->port || s->tcp || s->listener) {
    return -EINVAL;
  }
  if (local.address != 0 && local.address != s->table->config->address) {
    return -EADDRNOTAVAIL;
  }
  if (local.port == 0) {
    local.port = harp_flow_choose_port(stack, (struct harp_endpoint){0, 0});
  } else if (harp_flow_listening(stack, local.port)) {
    return -EADDRINUSE; /* as with Linux's SO_REUSEADDR, only a listener has the port alone */
  }
  s->port = local.port;
  s->address = local.address;
  return 0;
}

int harp_tcp_listen(struct harp_stack *stack, int number, int backlog)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (s->tcp || s->connected || s->connecting) {
    return -EINVAL;
  }
  s->backlog = (uint32_t)HARP_MAX(backlog, 0);
  if (s->listener) {
    harp_flow_set_backlog(s->listener, s->backlog);
    return 0;
  }
  if (!s->port) {
    s->port = harp_flow_choose_port(stack, (struct harp_endpoint){0, 0});
  }
  int result = harp_flow_listen(stack, s->port, s->backlog, &socket_ops, s, &s->listener);
  if (result == 0) {
    harp_flow_set_listener_syn(s->listener, &s->syn);
  }
  return result;
}

int harp_tcp_accept(struct harp_stack *stack, int number, struct sockaddr *address,
                    socklen_t *length)
{
  struct harp_socket *server = socket_get(stack, number);
  if (!server) {
    return -EBADF;
  }
  if (!server->listener) {
    return -EINVAL;
  }
  int child = server->queue;
  if (child < 0) {
    return -EAGAIN;
  }
  struct harp_socket *s = &server->table->sockets[child];
  server->queue = s->next;
  if (server->queue < 0) {
    server->queue_last = -1;
  }
  server->queued--;
  s->next = -1;
  s->waiting = false;
  socket_ready(s);
  if (address && length && *length > 0) {
    write_address(s->peer, address, length);
  }
  return child;
}

int harp_tcp_connect(struct harp_stack *stack, int number, const struct sockaddr *address,
                     socklen_t length)
{
  struct harp_socket *s = socket_get(stack, number);
  struct harp_endpoint peer;
  if (!s) {
    return -EBADF;
  }
  int result = read_address(address, length, &peer);
  if (result != 0) {
    return result;
  }
  if (s->connecting) {
    return -EALREADY;
  }
  if (s->error) {
    /* The result of the last attempt; the next call starts a new one. */
    return socket_take_error(s);
  }
  if (s->connected || s->listener) {
    return -EISCONN;
  }
  result = harp_flow_connect(stack, s->port, peer, &socket_ops, s, &s->tcp);
  if (result != 0) {
    return result;
  }
  s->port = harp_flow_local_port(s->tcp);
  s->address = s->table->config->address;
  s->peer = peer;
  s->connecting = true;
  s->ended = false;
  s->error = 0;
  harp_flow_set_syn(s->tcp, &s->syn);
  apply_options(s);
  harp_stack_flush(stack);
  return -EINPROGRESS;
}

/* --- Names --- */

int harp_tcp_getsockname(struct harp_stack *stack, int number, struct sockaddr *address,
                         socklen_t *length)
{
  const struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  write_address((struct harp_endpoint){s->address, s->port}, address, length);
  return 0;
}

int harp_tcp_getpeername(struct harp_stack *stack, int number, struct sockaddr *address,
                         socklen_t *length)
{
  const struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (!s->connected || !s->tcp) {
    return -ENOTCONN;
  }
  write_address(s->peer, address, length);
  return 0;
}

/* --- Closing --- */

static void shut_write(struct harp_socket *s)
{
  s->write_shut = true;
  if (s->tcp) {
    harp_flow_set_cork(s->tcp, false);
    harp_flow_close(s->tcp);
  }
}

int harp_tcp_shutdown(struct harp_stack *stack, int number, int how)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    return -EINVAL;
  }
  if (!s->connected || !s->tcp) {
    return -ENOTCONN;
  }
  if (how != SHUT_WR) {
    s->read_shut = true;
  }
  if (how != SHUT_RD && !s->write_shut) {
    shut_write(s);
  }
  socket_ready(s);
  harp_stack_flush(stack);
  return 0;
}

static void close_connection(struct harp_socket *s)
{
  bool hard = s->linger.l_onoff && s->linger.l_linger == 0;
  if (hard || harp_flow_unread(s->tcp)) {
    /* Unread data: the peer must learn that it was lost (RFC 2525, 2.17). */
    harp_flow_discard(s->tcp);
    return;
  }
  harp_flow_detach(s->tcp); /* this socket's number may be another's before the close ends */
  if (!s->write_shut) {
    shut_write(s);
  }
}

int harp_tcp_close(struct harp_stack *stack, int number)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  while (s->queue >= 0) {
    struct harp_socket *child = &s->table->sockets[s->queue];
    s->queue = child->next;
    if (child->tcp) {
      harp_flow_abort(child->tcp);
    }
    release(child);
  }
  if (s->listener) {
    harp_flow_unlisten(s->listener);
  }
  if (s->tcp) {
    close_connection(s);
  }
  release(s);
  harp_stack_flush(stack);
  return 0;
}
