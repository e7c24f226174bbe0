/* SPDX-License-Identifier: Apache-2.0 */
/* A socket's data: a small copying layer over a flow's references. */
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/socket/socket.h"

enum {
  SEND_FLAGS = MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL,
  RECEIVE_FLAGS = MSG_PEEK | MSG_DONTWAIT | MSG_NOSIGNAL | MSG_WAITALL,
};

/* --- Sending --- */

static uint32_t send_space(const struct harp_socket *s)
{
  uint32_t used = harp_flow_unacked(s->tcp);
  return used < s->sndbuf ? s->sndbuf - used : 0;
}

bool socket_writable(const struct harp_socket *s)
{
  if (!s->tcp || s->write_shut) {
    return !s->connecting;
  }
  return !s->connecting && send_space(s) > s->sndbuf / 3 && harp_flow_room(s->tcp) &&
         harp_flow_has_buffer(s->table->stack);
}

ssize_t harp_tcp_send(struct harp_stack *stack, int number, const void *data, size_t length,
                      int flags)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (flags & ~SEND_FLAGS) {
    return -EOPNOTSUPP;
  }
  if (s->error) {
    return socket_take_error(s);
  }
  if (s->connecting) {
    return -EAGAIN;
  }
  if (s->write_shut || s->ended) {
    return -EPIPE;
  }
  if (!s->connected) {
    return -ENOTCONN;
  }
  size_t part = HARP_MIN(length, (size_t)send_space(s));
  size_t done = harp_flow_write(s->tcp, data, part);
  if (done < part && !harp_flow_has_buffer(stack)) {
    s->starved = s->table->starved = true;
  }
  s->writable = done == length && socket_writable(s);
  if (done == 0 && length > 0) {
    return -EAGAIN;
  }
  harp_flow_set_cork(s->tcp, s->cork || (flags & MSG_MORE));
  harp_flow_ready(s->tcp);
  harp_stack_flush(stack);
  if (s->tcp) {
    harp_flow_set_cork(s->tcp, s->cork);
  }
  return (ssize_t)done;
}

/* --- Receiving --- */

uint32_t socket_readable(const struct harp_socket *s)
{
  return s->tcp ? harp_flow_unread(s->tcp) : harp_packets_unread(s->unread);
}

ssize_t harp_tcp_recv(struct harp_stack *stack, int number, void *data, size_t length, int flags)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (flags & ~RECEIVE_FLAGS) {
    return -EINVAL;
  }
  if (s->connecting) {
    return -EAGAIN;
  }
  if (!s->connected && !s->error) {
    return -ENOTCONN;
  }
  bool peek = flags & MSG_PEEK;
  if (s->tcp && harp_flow_unread(s->tcp)) {
    size_t done = harp_flow_read(s->tcp, data, length, peek);
    if (!peek) {
      harp_stack_flush(stack);
    }
    return (ssize_t)done;
  }
  if (s->unread) {
    return (ssize_t)harp_packets_read(stack, &s->unread, data, length, peek);
  }
  if (s->fin_received) {
    return 0;
  }
  if (s->error) {
    return socket_take_error(s);
  }
  if (s->ended || s->read_shut || harp_flow_fin_received(s->tcp)) {
    return 0;
  }
  return -EAGAIN;
}

/* --- Poll and ioctl --- */

int harp_tcp_poll(struct harp_stack *stack, int number)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (s->listener) {
    return s->queue >= 0 ? POLLIN : 0;
  }
  int events = s->error ? POLLERR : 0;
  if (s->connecting) {
    return events;
  }
  bool read_end = s->ended || s->read_shut || (s->tcp && harp_flow_fin_received(s->tcp));
  bool write_end = s->ended || s->write_shut;
  if (!s->tcp) {
    return events | POLLHUP | (s->ended ? POLLIN | POLLRDHUP | POLLOUT : POLLOUT);
  }
  if (harp_flow_unread(s->tcp) || read_end) {
    events |= POLLIN;
  }
  if (read_end) {
    events |= POLLRDHUP;
  }
  if (read_end && write_end) {
    events |= POLLHUP;
  }
  if (socket_writable(s)) {
    events |= POLLOUT;
  }
  return events;
}

int harp_tcp_ioctl(struct harp_stack *stack, int number, unsigned long request, int *value)
{
  const struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (s->listener) {
    return -EINVAL;
  }
  switch (request) {
  case FIONREAD: *value = (int)socket_readable(s); return 0;
  case TIOCOUTQ: *value = s->tcp ? (int)harp_flow_unacked(s->tcp) : 0; return 0;
  default: return -EINVAL;
  }
}
