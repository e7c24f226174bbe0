/* SPDX-License-Identifier: Apache-2.0 */
/* A socket's data: a small copying layer over a flow's references. */
#include <poll.h>
#include <sys/ioctl.h>

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/socket/socket.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_sndq.h"

enum {
  SEND_FLAGS = MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL,
  RECEIVE_FLAGS = MSG_PEEK | MSG_DONTWAIT | MSG_NOSIGNAL | MSG_WAITALL,
};

/* --- Sending --- */

static uint32_t send_space(const struct harp_socket *s)
{
  uint32_t used = s->tcp->snd.end - s->tcp->snd.una;
  return used < s->sndbuf ? s->sndbuf - used : 0;
}

bool socket_writable(const struct harp_socket *s)
{
  if (!s->tcp || s->write_shut) {
    return !s->connecting;
  }
  return !s->connecting && send_space(s) > s->sndbuf / 3 && socket_memory(s->stack);
}

/* Fills the last packet first, then new ones. */
static size_t copy_in(struct harp_socket *s, const uint8_t *data, size_t length)
{
  struct harp_tcp *tcp = s->tcp;
  struct harp_pool *pool = &s->stack->packets;
  size_t done = 0;
  while (done < length) {
    struct harp_reference *last = tcp->sndq.last;
    if (last && last->packet && last->packet->length < HARP_PACKET_DATA) {
      struct harp_packet *packet = last->packet;
      size_t part = HARP_MIN(length - done, (size_t)(HARP_PACKET_DATA - packet->length));
      memcpy(packet->data + packet->length, data + done, part);
      packet->length += (uint32_t)part;
      tcp_sndq_extend(tcp, (uint32_t)part);
      done += part;
      continue;
    }
    if (!socket_memory(s->stack)) {
      s->starved = s->stack->starved = true;
      break;
    }
    struct harp_packet *packet = pool_get(pool);
    packet->length = (uint32_t)HARP_MIN(length - done, (size_t)HARP_PACKET_DATA);
    memcpy(packet->data, data + done, packet->length);
    if (tcp_sndq_push(tcp, packet->data, packet->length, packet) != 0) {
      pool_put(pool, packet);
      break;
    }
    done += packet->length;
  }
  return done;
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
  size_t done = copy_in(s, data, part);
  s->writable = done == length && socket_writable(s);
  if (done == 0 && length > 0) {
    return -EAGAIN;
  }
  bool cork = s->tcp->snd.cork;
  s->tcp->snd.cork |= (flags & MSG_MORE) != 0;
  tcp_mark_dirty(s->tcp);
  harp_stack_flush(stack);
  if (s->tcp) {
    s->tcp->snd.cork = cork;
  }
  return (ssize_t)done;
}

/* --- Receiving --- */

uint32_t socket_readable(const struct harp_socket *s)
{
  uint32_t bytes = s->tcp ? s->tcp->rcv.queued : 0;
  for (const struct harp_packet *packet = s->unread; packet; packet = packet->next) {
    bytes += packet->length - packet->offset;
  }
  return bytes;
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
  if (s->tcp && s->tcp->rcv.queued && !s->read_shut) {
    size_t done = tcp_rcvq_read(s->tcp, data, length, peek);
    if (!peek) {
      tcp_window_opened(s->tcp);
      harp_stack_flush(stack);
    }
    return (ssize_t)done;
  }
  if (s->unread && !s->read_shut) {
    return (ssize_t)tcp_packets_read(&stack->packets, &s->unread, data, length, peek);
  }
  if (s->fin_received) {
    return 0;
  }
  if (s->error) {
    return socket_take_error(s);
  }
  if (s->ended || s->read_shut || s->tcp->rcv.fin_received) {
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
  bool read_end = s->ended || s->read_shut || (s->tcp && s->tcp->rcv.fin_received);
  bool write_end = s->ended || s->write_shut;
  if (!s->tcp) {
    return events | POLLHUP | (s->ended ? POLLIN | POLLRDHUP | POLLOUT : POLLOUT);
  }
  if (s->tcp->rcv.queued || read_end) {
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

/* Returns the unacknowledged bytes; the FIN counts as one. */
static uint32_t unacknowledged(const struct harp_tcp *tcp)
{
  uint32_t end = tcp->snd.end + (tcp->snd.fin_queued || tcp->snd.fin_sent);
  return tcp_synchronized(tcp) ? end - tcp->snd.una : 0;
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
  case TIOCOUTQ: *value = s->tcp ? (int)unacknowledged(s->tcp) : 0; return 0;
  default: return -EINVAL;
  }
}
