/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing of connections; the connection table. */
#include "harp/stack/tcp/tcp_conn.h"

#include "harp/headers.h"
#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/ip_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/list.h"
#include "harp/stack/pool.h"
#include "harp/stack/siphash.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"
#include "harp/stack/tcp/tcp_wait.h"

enum {
  FIRST_PORT = 49152, /* RFC 6335 */
  LAST_PORT = 65535,
  OWN_SHARE = 8, /* one of this many connections is reserved for active opens */
};

const struct harp_flow_ops harp_flow_no_ops;

/* --- The table --- */

struct harp_tcp *tcp_lookup(struct harp_stack *stack, uint32_t remote_address, uint16_t remote_port,
                            uint16_t local_port)
{
  return tcp_find(stack, tcp_key(remote_address, (uint32_t)remote_port << 16 | local_port));
}

struct harp_listener *tcp_listener(struct harp_stack *stack, uint16_t port)
{
  struct harp_listener *listener = *listener_bucket(stack, port);
  while (listener && listener->port != port) {
    listener = listener->hash_next;
  }
  return listener;
}

uint16_t tcp_choose_port(struct harp_stack *stack, struct harp_endpoint peer)
{
  uint32_t range = LAST_PORT - FIRST_PORT + 1;
  uint64_t tuple = (uint64_t)peer.address << 16 | peer.port;
  uint32_t offset = (uint32_t)harp_siphash(stack->config.seed, tuple, 1);
  for (uint32_t i = 0; i < range; i++) {
    uint16_t port = (uint16_t)(FIRST_PORT + (offset + stack->port_offset++) % range);
    if (!tcp_lookup(stack, peer.address, peer.port, port) && !tcp_listener(stack, port)) {
      return port;
    }
  }
  return 0;
}

/* ISN (RFC 6528): a clock with ticks of about 4 us, plus a keyed hash of the four-tuple. */
static uint32_t initial_sequence(const struct harp_tcp *tcp)
{
  uint64_t addresses = (uint64_t)tcp->local_address << 32 | tcp->remote_address;
  uint64_t ports = (uint64_t)tcp->local_port << 32 | tcp->remote_port;
  return (uint32_t)(tcp->stack->now >> 12) +
         (uint32_t)harp_siphash(tcp->stack->config.seed, addresses, ports);
}

/* RFC 7323, 5.4 and 7.1: the offset hides the uptime. It depends on the four-tuple only, so the
 * timestamps of the next connection continue those of the last (RFC 6191). */
static uint32_t timestamp_offset(const struct harp_tcp *tcp)
{
  uint64_t local = (uint64_t)tcp->local_address << 32 | 2;
  return (uint32_t)harp_siphash(tcp->stack->config.seed, tcp->key, local);
}

/* --- Half-open connections --- */

void tcp_join_half_open(struct harp_listener *listener, struct harp_tcp *tcp)
{
  tcp->listener = listener;
  list_append(&listener->half_open, &tcp->half_open_link);
  listener->pending++;
  list_append(&tcp->stack->half_open, &tcp->turn);
  tcp->stack->half_open_count++;
}

static void leave_half_open(struct harp_tcp *tcp)
{
  list_remove(&tcp->half_open_link);
  tcp->listener->pending--;
  tcp->listener = NULL;
  list_remove(&tcp->turn);
  tcp->stack->half_open_count--;
}

bool tcp_listener_full(struct harp_listener *listener)
{
  bool full = listener->ops->full && listener->ops->full(listener->user);
  COUNT_N(listener->stack, tcp_listen_drops, full);
  return full;
}

/* The oldest half-open connection is the most likely to belong to a SYN flood (RFC 4987, 3.4). One
 * whose handshake is complete is real and waits for the accept queue. */
bool tcp_drop_half_open(struct harp_stack *stack, struct harp_tcp *oldest, uint64_t least)
{
  if (!oldest || stack->now - oldest->syn_sent < least) {
    return false;
  }
  if (least && oldest->snd.una == oldest->snd.nxt) {
    return false;
  }
  COUNT(stack, tcp_half_open_dropped);
  tcp_cookie_expect(oldest->listener); /* its peer may still answer and must get no RST */
  tcp_finish(oldest, -ETIMEDOUT);
  return true;
}

struct harp_tcp *tcp_oldest_of(struct harp_list *turns)
{
  return list_empty(turns) ? NULL : HARP_CONTAINER(turns->next, struct harp_tcp, turn);
}

/* Frees connections until more than `keep` are available: those in TIME-WAIT without an owner, then
 * half-open ones at least `least` ns old. false: there are not enough. */
static bool free_places(struct harp_stack *stack, uint32_t keep, uint64_t least)
{
  while (stack->connections.available <= keep) {
    stack_free_closed(stack);
    if (stack->connections.available > keep) {
      break;
    }
    struct harp_tcp *waiting = tcp_oldest_of(&stack->time_wait);
    if (waiting) {
      tcp_finish(waiting, 0);
    } else if (!tcp_drop_half_open(stack, tcp_oldest_of(&stack->half_open), least)) {
      return false;
    }
  }
  return true;
}

/* --- A connection's life --- */

void tcp_set_iss(struct harp_tcp *tcp, uint32_t iss)
{
  tcp->snd.iss = tcp->snd.una = iss;
  tcp->snd.nxt = tcp->snd.end = iss + 1;
  tcp->flight.high_sacked = tcp->snd.edge = tcp->snd.nxt;
  tcp->snd.short_end = tcp->snd.push_end = iss;
}

bool tcp_initialise(struct harp_tcp *tcp, struct harp_stack *stack, struct harp_endpoint peer,
                    uint16_t local_port)
{
  uint32_t next_hop = ip_next_hop(stack, peer.address);
  if (!next_hop && stack->link_header) {
    return false;
  }
  const struct harp_stack_config *config = &stack->config;
  *tcp = (struct harp_tcp){
      .stack = stack,
      .local_address = config->address,
      .remote_address = peer.address,
      .local_port = local_port,
      .remote_port = peer.port,
      .state = TCP_CLOSE,
      .next_hop = next_hop,
      .rcv.buf = config->rcvbuf,
      .rcv.wscale = (uint8_t)HARP_MAX(config->window_scale, 0),
      .ack.rcv_mss = TCP_DEFAULT_MSS,
      .snd.peer_mss = TCP_DEFAULT_MSS,
      .rtt.rto = config->rto_initial_us * NS_PER_US,
      .rtt.rto_min = config->rto_min_us * NS_PER_US,
      .rtt.min = UINT64_MAX,
      .heap_index = UINT32_MAX,
      .ops = &harp_flow_no_ops,
      .last_send = stack->now,
      .last_receive = stack->now,
      .last_progress = stack->now,
  };
  for (int i = 0; i < TIMERS; i++) {
    tcp->timers[i] = TIMER_OFF;
  }
  tcp_cwnd_init(tcp);
  list_init(&tcp->neighbour_link);
  list_init(&tcp->half_open_link);
  list_init(&tcp->turn);
  tcp->ts.offset = timestamp_offset(tcp);
  tcp->cc.ops = harp_cc_find(config->cc);
  tcp->syn_sent = stack->now;
  return true;
}

struct harp_tcp *tcp_create(struct harp_stack *stack, struct harp_endpoint peer,
                            uint16_t local_port, enum tcp_opening opening)
{
  uint32_t keep = opening == OPENING_OWN ? 0 : stack->connections.total / OWN_SHARE;
  if (!free_places(stack, keep, opening == OPENING_SYN ? HALF_OPEN_LEAST_NS : 0)) {
    return NULL;
  }
  struct harp_tcp *tcp = pool_get(&stack->connections);
  if (!tcp_initialise(tcp, stack, peer, local_port)) {
    pool_put(&stack->connections, tcp);
    return NULL;
  }
  tcp_set_iss(tcp, initial_sequence(tcp));
  struct harp_tcp **head = tcp_bucket(stack, tcp->key);
  tcp->hash_next = *head;
  *head = tcp;
  COUNT(stack, tcp_connections);
  return tcp;
}

void tcp_set_state(struct harp_tcp *tcp, uint8_t state)
{
  if (tcp->state == TCP_ESTABLISHED) {
    COUNT_DOWN(tcp->stack, tcp_established);
  }
  if (state == TCP_ESTABLISHED) {
    COUNT(tcp->stack, tcp_established);
  }
  tcp->state = state;
}

void tcp_set_mss(struct harp_tcp *tcp)
{
  uint32_t mss = HARP_MIN(tcp->snd.peer_mss,
                          (uint32_t)tcp->stack->config.mtu - IP_HEADER - TCP_HEADER);
  if (tcp->user_mss) {
    mss = HARP_MIN(mss, tcp->user_mss);
  }
  mss = HARP_MAX(mss, (uint32_t)TCP_MSS_FLOOR);
  mss -= tcp->timestamps ? TCP_TIMESTAMP_OPTION : 0;
  /* send_length sends full segments, so one must fit into one output call. */
  tcp->snd.mss = HARP_MIN(mss, tcp->stack->max_payload);
}

bool tcp_lower_path_mtu(struct harp_tcp *tcp, uint32_t mtu)
{
  uint32_t mss = mtu - IP_HEADER - TCP_HEADER;
  if (mss >= tcp->snd.peer_mss || mtu >= tcp->stack->config.mtu) {
    return false;
  }
  tcp->snd.peer_mss = mss;
  tcp_set_mss(tcp);
  /* The segment that was too big is lost. All data in flight is sent again in smaller segments. */
  for (struct harp_record *record = tcp->flight.first; record; record = record->next) {
    if (record->state == RECORD_IN_FLIGHT || record->state == RECORD_RETRANSMITTED) {
      tcp_mark_lost(tcp, record);
    }
  }
  tcp_mark_dirty(tcp);
  return true;
}

void tcp_take_syn_options(struct harp_tcp *tcp, const struct harp_segment *segment)
{
  const struct harp_stack_config *config = &tcp->stack->config;
  tcp->snd.peer_mss = segment->mss ? segment->mss : TCP_DEFAULT_MSS;
  tcp->sack = config->sack && segment->sack_permitted;
  tcp->timestamps = config->timestamps && segment->has_timestamp;
  if (tcp->timestamps) {
    tcp->ts.recent = segment->timestamp;
    tcp->ts.recent_time = tcp->stack->now;
  }
  tcp->window_scaling = config->window_scale >= 0 && segment->window_scale >= 0;
  tcp->snd.wscale = tcp->window_scaling ? (uint8_t)segment->window_scale : 0;
  if (!tcp->window_scaling) {
    tcp->rcv.wscale = 0;
  }
  tcp_set_mss(tcp);
}

void tcp_become_established(struct harp_tcp *tcp)
{
  tcp_set_state(tcp, TCP_ESTABLISHED);
  tcp_timer_stop(tcp, TIMER_RTO);
  tcp_timer_stop(tcp, TIMER_USER); /* the timer covered the SYN only */
  tcp->snd.edge = tcp->snd.una + tcp->snd.wnd;
  tcp_cwnd_established(tcp);
  tcp->last_receive = tcp->last_progress = tcp->stack->now;
  tcp->cc.ops->init(tcp);
  tcp_mark_dirty(tcp);
  struct harp_listener *listener = tcp->listener;
  if (!listener) {
    if (tcp->snd.fin_queued) {
      tcp_set_state(tcp, TCP_FIN_WAIT1); /* the owner has closed it during the handshake */
    } else if (tcp->ops->established) {
      tcp->ops->established(tcp->user, tcp);
    }
    return;
  }
  leave_half_open(tcp);
  COUNT(tcp->stack, tcp_passive_opens);
  if (listener->ops->accept(listener->user, tcp) != 0) {
    COUNT(tcp->stack, tcp_listen_drops);
    tcp_send_reset(tcp);
    tcp_finish(tcp, -ECONNABORTED);
  }
}

void tcp_take_syn(struct harp_tcp *tcp, const struct harp_listener *listener,
                  const struct harp_segment *syn)
{
  tcp->rcv.buf = listener->rcvbuf;
  tcp->user_mss = listener->user_mss;
  tcp->rcv.wscale = listener->rcv_wscale;
  tcp_set_tos(tcp, listener->tos);
  tcp_take_syn_options(tcp, syn);
  tcp->rcv.irs = syn->seq;
  tcp->rcv.nxt = tcp->rcv.right = tcp->ack.last_sent = syn->seq + 1;
  tcp->snd.wnd = tcp->snd.max_wnd = syn->window;
}

void tcp_finish(struct harp_tcp *tcp, int error)
{
  struct harp_stack *stack = tcp->stack;
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  tcp_set_state(tcp, TCP_CLOSE);
  tcp_wait_for(tcp, TCP_WAIT_NOTHING);
  COUNT_DOWN(stack, tcp_connections);
  struct harp_tcp **link = tcp_bucket(stack, tcp->key);
  while (*link != tcp) {
    link = &(*link)->hash_next;
  }
  *link = tcp->hash_next;
  if (tcp->listener) {
    leave_half_open(tcp);
  }
  list_remove(&tcp->turn);
  if (tcp->neighbour) {
    neighbour_detach(stack, tcp->neighbour, &tcp->neighbour_link);
    tcp->neighbour = NULL;
  }
  tcp_timers_remove(tcp);
  tcp_sndq_clear(tcp);
  tcp_mark_dirty(tcp); /* the flush returns it to the pool, when no caller uses it */
  if (!tcp->detached && tcp->ops->closed) {
    tcp->ending = true;
    tcp->ops->closed(tcp->user, tcp, error);
    tcp->ending = false;
  }
  tcp_rcvq_clear(tcp); /* closed() may have taken the unread data */
}

void tcp_owner_done(struct harp_tcp *tcp)
{
  tcp_detach(tcp);
  if (tcp->ops->closed) {
    tcp->ops->closed(tcp->user, tcp, 0);
  }
}

void tcp_detach(struct harp_tcp *tcp)
{
  tcp->detached = true;
  if (tcp->state == TCP_TIME_WAIT) {
    list_move(&tcp->stack->time_wait, &tcp->turn);
  }
}

void tcp_time_wait_start_timer(struct harp_tcp *tcp)
{
  tcp_timer_set(tcp, TIMER_CLOSE, tcp->stack->now + TIME_WAIT_NS);
  if (tcp->detached) {
    list_move(&tcp->stack->time_wait, &tcp->turn);
  }
}

void tcp_time_wait(struct harp_tcp *tcp)
{
  tcp_set_state(tcp, TCP_TIME_WAIT);
  for (int i = 0; i < TIMERS; i++) {
    tcp->timers[i] = TIMER_OFF;
  }
  tcp_time_wait_start_timer(tcp);
  if (tcp->detached) {
    return;
  }
  if (tcp->ops->deliver && tcp->rcv.queued == 0) {
    tcp_owner_done(tcp);
  } else if (tcp->ops->readable) {
    tcp->ops->readable(tcp->user, tcp);
  }
}

void tcp_neighbour_failed(struct harp_neighbour *neighbour)
{
  /* closed() may end other connections of this list. So the connections still to visit are in a
   * list of their own. */
  struct harp_list left, *link;
  list_init(&left);
  while ((link = list_first(&neighbour->users))) {
    list_move(&left, link);
  }
  while ((link = list_first(&left))) {
    struct harp_tcp *tcp = HARP_CONTAINER(link, struct harp_tcp, neighbour_link);
    list_move(&neighbour->users, link);
    if (tcp->state == TCP_SYN_SENT) {
      tcp_finish(tcp, -EHOSTUNREACH); /* the last user may free the neighbour */
    }
  }
}
