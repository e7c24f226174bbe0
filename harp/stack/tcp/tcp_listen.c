/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that arrive at a listener (RFC 9293, 3.10.7.2). */
#include "harp/stack/tcp/tcp_listen.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/list.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_cookie.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_times.h"

enum {
  HALF_OPEN_SHARE = 2, /* at most 1/HALF_OPEN_SHARE of the connections may be half-open */
  ISN_GAP = 65535,     /* between two connections of a four-tuple, as in Linux */
};

/* Whether a handshake may begin. Each listener and the stack limit their half-open connections. */
static bool may_begin(struct harp_listener *listener)
{
  struct harp_stack *stack = listener->stack;
  struct harp_tcp *oldest = NULL;
  if (listener->pending >= listener->backlog) {
    oldest = HARP_CONTAINER(listener->half_open.next, struct harp_tcp, half_open_link);
  } else if (stack->half_open_count >= HARP_MAX(stack->connections.total / HALF_OPEN_SHARE, 1u)) {
    oldest = tcp_oldest_of(&stack->half_open);
  }
  return !oldest || tcp_drop_half_open(stack, oldest, HALF_OPEN_LEAST_NS);
}

/* Ends a connection in TIME-WAIT. Returns the least ISN of the next one (RFC 9293, 3.6.1, MAY-2): a
 * fast connection without timestamps may have used numbers beyond the clock of the ISN. SND.NXT is
 * as hard to guess as the ISN was. */
static uint32_t end_time_wait(struct harp_tcp *old)
{
  uint32_t least = old->snd.nxt + ISN_GAP;
  tcp_finish(old, 0);
  return least;
}

static void syn_input(struct harp_listener *listener, const struct harp_segment *segment,
                      struct harp_tcp *old)
{
  struct harp_stack *stack = listener->stack;
  if (tcp_listener_full(listener)) {
    return;
  }
  bool reopened = old != NULL;
  uint32_t least = reopened ? end_time_wait(old) : 0;
  if (reopened && tcp_listener(stack, segment->destination_port) != listener) {
    return; /* the old connection's owner has closed the listener */
  }
  struct harp_endpoint peer = {segment->source, segment->source_port};
  struct harp_tcp *tcp = may_begin(listener) ? tcp_create(stack, peer, listener->port, OPENING_SYN)
                                             : NULL;
  if (!tcp) {
    tcp_cookie_send(listener, segment);
    return;
  }
  if (reopened) {
    tcp_set_iss(tcp, seq_max(tcp->snd.iss, least));
  }
  tcp_join_half_open(listener, tcp);
  tcp_take_syn(tcp, listener, segment);
  tcp_set_state(tcp, TCP_SYN_RECV);
  tcp_send_syn(tcp);
}

/* An acknowledgement without a connection. It may acknowledge a SYN cookie. */
static struct harp_tcp *unconnected_ack(struct harp_listener *listener,
                                        const struct harp_segment *segment)
{
  struct harp_tcp *tcp = NULL;
  switch (tcp_cookie_take(listener, segment, &tcp)) {
  case COOKIE_TAKEN:
    tcp_join_half_open(listener, tcp); /* the caller completes the handshake with this segment */
    tcp_set_state(tcp, TCP_SYN_RECV);
    break;
  case COOKIE_NONE: tcp_reply_reset(listener->stack, segment); break;
  case COOKIE_REFUSED: break;
  }
  return tcp;
}

struct harp_tcp *tcp_listen_input(struct harp_listener *listener,
                                  const struct harp_segment *segment, struct harp_tcp *old)
{
  struct harp_stack *stack = listener->stack;
  if (segment->flags & FLAG_RST) {
    return NULL;
  }
  if (stack->io.admits && !stack->io.admits(stack->io.user, segment->source)) {
    COUNT(stack, tcp_peer_refused);
    tcp_reply_reset(stack, segment); /* the port is closed for these peers */
    return NULL;
  }
  if (segment->flags & FLAG_ACK) {
    return unconnected_ack(listener, segment);
  }
  if ((segment->flags & (FLAG_SYN | FLAG_FIN)) == FLAG_SYN) {
    syn_input(listener, segment, old);
  }
  return NULL;
}
