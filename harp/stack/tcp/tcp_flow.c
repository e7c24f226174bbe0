/* SPDX-License-Identifier: Apache-2.0 */
/* Flows: the stack's interface to upper layers (flow.h). */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/ip_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/list.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_rtt.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"
#include "harp/stack/tcp/tcp_wait.h"

/* --- Opening --- */

uint16_t harp_flow_choose_port(struct harp_stack *stack, struct harp_endpoint peer)
{
  return tcp_choose_port(stack, peer);
}

bool harp_flow_listening(struct harp_stack *stack, uint16_t local_port)
{
  return tcp_listener(stack, local_port) != NULL;
}

int harp_flow_connect(struct harp_stack *stack, uint16_t local_port, struct harp_endpoint peer,
                      const struct harp_flow_ops *ops, void *user, struct harp_tcp **out)
{
  if (peer.port == 0 || peer.address == 0) {
    return -EINVAL;
  }
  if (local_port == 0) {
    local_port = tcp_choose_port(stack, peer);
  }
  if (local_port == 0 || tcp_lookup(stack, peer.address, peer.port, local_port)) {
    return -EADDRINUSE;
  }
  if (stack->link_header && ip_next_hop(stack, peer.address) == 0) {
    return -ENETUNREACH;
  }
  struct harp_tcp *tcp = tcp_create(stack, peer, local_port, OPENING_OWN);
  if (!tcp) {
    return -ENOBUFS;
  }
  tcp->ops = ops;
  tcp->user = user;
  tcp->active = true;
  neighbour_expect(stack, tcp->next_hop);
  COUNT(stack, tcp_active_opens);
  tcp_set_state(tcp, TCP_SYN_SENT);
  *out = tcp;
  tcp_mark_dirty(tcp); /* the flush sends the SYN, with the options set until then */
  return 0;
}

int harp_flow_listen(struct harp_stack *stack, uint16_t local_port, uint32_t backlog,
                     const struct harp_flow_ops *ops, void *user, struct harp_listener **out)
{
  if (tcp_listener(stack, local_port)) {
    return -EADDRINUSE;
  }
  struct harp_listener *listener = pool_get(&stack->listener_pool);
  if (!listener) {
    return -ENOBUFS;
  }
  struct harp_listener **bucket = listener_bucket(stack, local_port);
  *listener = (struct harp_listener){
      .hash_next = *bucket,
      .stack = stack,
      .ops = ops,
      .user = user,
      .backlog = HARP_MAX(backlog, 1),
      .rcvbuf = stack->config.rcvbuf,
      .rcv_wscale = (uint8_t)HARP_MAX(stack->config.window_scale, 0),
      .port = local_port,
  };
  list_init(&listener->half_open);
  *bucket = listener;
  *out = listener;
  return 0;
}

void harp_flow_set_backlog(struct harp_listener *listener, uint32_t backlog)
{
  listener->backlog = HARP_MAX(backlog, 1);
}

void harp_flow_unlisten(struct harp_listener *listener)
{
  struct harp_stack *stack = listener->stack;
  struct harp_listener **link = listener_bucket(stack, listener->port);
  while (*link != listener) {
    link = &(*link)->hash_next;
  }
  *link = listener->hash_next;
  while (!list_empty(&listener->half_open)) {
    struct harp_list *first = listener->half_open.next;
    struct harp_tcp *tcp = HARP_CONTAINER(first, struct harp_tcp, half_open_link);
    tcp_send_reset(tcp);
    tcp_finish(tcp, -ECONNABORTED);
  }
  pool_put(&stack->listener_pool, listener);
}

void harp_flow_attach(struct harp_tcp *tcp, const struct harp_flow_ops *ops, void *user)
{
  tcp->ops = ops;
  tcp->user = user;
}

/* --- Data --- */

int harp_flow_push(struct harp_tcp *tcp, const void *data, uint32_t length, bool end)
{
  if (tcp->snd.fin_queued || tcp->snd.fin_sent || tcp->state == TCP_CLOSE) {
    return -EPIPE;
  }
  tcp_mark_dirty(tcp);
  int result = length ? tcp_sndq_push(tcp, data, length, NULL) : 0;
  if (result == 0 && length) {
    tcp->sndq.last->end = end;
  }
  return result;
}

uint32_t harp_flow_room(const struct harp_tcp *tcp)
{
  return HARP_MIN(TCP_MAX_REFERENCES - tcp->sndq.count, tcp->stack->references.available);
}

void harp_flow_ready(struct harp_tcp *tcp) { tcp_mark_dirty(tcp); }

/* The owner has taken the last byte before the peer's FIN: report the FIN now. */
static void signal_fin(struct harp_tcp *tcp)
{
  if (tcp->ops->readable) {
    tcp->ops->readable(tcp->user, tcp);
  }
  if (tcp->state == TCP_TIME_WAIT && !tcp->detached) {
    tcp_owner_done(tcp);
  }
}

void harp_flow_resume(struct harp_tcp *tcp)
{
  bool waited = tcp->rcv.queued > 0;
  tcp->stack->current = tcp;
  tcp_rcvq_deliver(tcp);
  if (waited && tcp->rcv.queued == 0 && tcp->rcv.fin_received && tcp->state != TCP_CLOSE) {
    signal_fin(tcp);
    return; /* no more data will arrive, so no window update is needed */
  }
  if (tcp->rcv.mem_pressure && !tcp->rcv.queue) {
    /* The owner takes data again, but the peer has seen a closed window: update it. */
    tcp->rcv.mem_pressure = false;
    tcp_ack_at_once(tcp);
  }
  tcp_window_opened(tcp);
}

/* --- Copied data --- */

bool harp_flow_has_buffer(const struct harp_stack *stack)
{
  return stack->packets.available > stack->packets.total / RECEIVE_SHARE;
}

/* Appends to the free space of the last packet. Returns the bytes appended. */
static size_t fill_last(struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  struct harp_packet *packet = tcp->sndq.last ? tcp->sndq.last->packet : NULL;
  if (!packet) {
    return 0;
  }
  size_t part = HARP_MIN(length, (size_t)(HARP_PACKET_DATA - packet->length));
  if (part) {
    memcpy(packet->data + packet->length, data, part);
    packet->length += (uint32_t)part;
    tcp_sndq_extend(tcp, (uint32_t)part);
  }
  return part;
}

size_t harp_flow_write(struct harp_tcp *tcp, const void *data, size_t length)
{
  struct harp_pool *pool = &tcp->stack->packets;
  const uint8_t *from = data;
  size_t done = fill_last(tcp, from, length);
  while (done < length && harp_flow_has_buffer(tcp->stack)) {
    struct harp_packet *packet = pool_get(pool);
    packet->length = (uint32_t)HARP_MIN(length - done, (size_t)HARP_PACKET_DATA);
    memcpy(packet->data, from + done, packet->length);
    if (tcp_sndq_push(tcp, packet->data, packet->length, packet) != 0) {
      pool_put(pool, packet);
      break;
    }
    done += packet->length;
  }
  return done;
}

uint32_t harp_flow_unread(const struct harp_tcp *tcp) { return tcp->rcv.queued; }

size_t harp_flow_read(struct harp_tcp *tcp, void *data, size_t length, bool peek)
{
  size_t done = tcp_rcvq_read(tcp, data, length, peek);
  if (!peek) {
    tcp_window_opened(tcp);
  }
  return done;
}

struct harp_packet *harp_flow_take(struct harp_tcp *tcp) { return tcp_rcvq_take(tcp); }

uint32_t harp_packets_unread(const struct harp_packet *packets)
{
  uint32_t bytes = 0;
  for (; packets; packets = packets->next) {
    bytes += packets->length - packets->offset;
  }
  return bytes;
}

size_t harp_packets_read(struct harp_stack *stack, struct harp_packet **packets, void *data,
                         size_t length, bool peek)
{
  return tcp_packets_read(&stack->packets, packets, data, length, peek);
}

void harp_packets_free(struct harp_stack *stack, struct harp_packet *packets)
{
  tcp_packets_free(&stack->packets, packets);
}

/* --- Closing --- */

void harp_flow_replace(struct harp_tcp *fresh, struct harp_tcp *old)
{
  if (old->rcv.queue) {
    *(fresh->rcv.queue_tail ? &fresh->rcv.queue_tail->next : &fresh->rcv.queue) = old->rcv.queue;
    fresh->rcv.queue_tail = old->rcv.queue_tail;
    fresh->rcv.queued += old->rcv.queued;
    old->rcv.queue = old->rcv.queue_tail = NULL;
    old->rcv.queued = 0;
  }
  old->detached = true;
  tcp_finish(old, -ECONNABORTED);
}

void harp_flow_close(struct harp_tcp *tcp)
{
  switch (tcp->state) {
  case TCP_SYN_SENT: tcp_finish(tcp, 0); return;
  case TCP_SYN_RECV: /* the FIN waits for the end of the handshake (RFC 9293, 3.10.4) */ break;
  case TCP_ESTABLISHED: tcp_set_state(tcp, TCP_FIN_WAIT1); break;
  case TCP_CLOSE_WAIT: tcp_set_state(tcp, TCP_LAST_ACK); break;
  default: return;
  }
  tcp->snd.fin_queued = true;
  tcp_mark_dirty(tcp);
}

void harp_flow_abort(struct harp_tcp *tcp)
{
  tcp_detach(tcp);
  if (tcp->state != TCP_TIME_WAIT) {
    if (tcp->harp_peer || tcp_may_reset(tcp->stack)) {
      tcp_send_reset(tcp);
    }
    tcp_finish(tcp, -ECONNABORTED);
  }
}

void harp_flow_discard(struct harp_tcp *tcp)
{
  harp_flow_abort(tcp);
  if (tcp->state == TCP_TIME_WAIT) {
    tcp_finish(tcp, 0);
  }
}

void harp_flow_detach(struct harp_tcp *tcp)
{
  harp_flow_attach(tcp, &harp_flow_no_ops, NULL);
  tcp_detach(tcp);
  bool all_acked = tcp->state == TCP_LAST_ACK && tcp->snd.una == tcp->snd.nxt;
  if (tcp->state == TCP_FIN_WAIT2 || all_acked) {
    tcp_timer_set(tcp, TIMER_CLOSE, tcp->stack->now + FIN_WAIT_2_NS);
  }
}

/* --- Options --- */

void harp_flow_set_syn(struct harp_tcp *tcp, const struct harp_flow_syn *syn)
{
  tcp->rcv.buf = syn->rcvbuf;
  tcp->rcv.wscale = syn->rcv_wscale;
  tcp->user_mss = syn->mss;
  tcp_set_tos(tcp, syn->tos);
}

void harp_flow_set_listener_syn(struct harp_listener *listener, const struct harp_flow_syn *syn)
{
  listener->rcvbuf = syn->rcvbuf;
  listener->rcv_wscale = syn->rcv_wscale;
  listener->user_mss = syn->mss;
  listener->tos = syn->tos;
}

void harp_flow_set_rcvbuf(struct harp_tcp *tcp, uint32_t bytes) { tcp->rcv.buf = bytes; }

void harp_flow_set_mss(struct harp_tcp *tcp, uint32_t mss)
{
  tcp->user_mss = mss;
  tcp_set_mss(tcp);
}

void harp_flow_set_tos(struct harp_tcp *tcp, uint8_t tos) { tcp_set_tos(tcp, tos); }

void harp_flow_set_cork(struct harp_tcp *tcp, bool cork) { tcp->snd.cork = cork; }

void harp_flow_set_nodelay(struct harp_tcp *tcp, bool nodelay)
{
  tcp->snd.nodelay = nodelay;
  if (nodelay) {
    tcp->snd.push_end = tcp->snd.end;
  }
}

void harp_flow_set_congestion(struct harp_tcp *tcp, const char *name)
{
  const struct harp_cc_ops *ops = harp_cc_find(name);
  if (tcp->cc.ops != ops) {
    ops->init(tcp);
  }
}

const char *harp_congestion_name(const char *name)
{
  const struct harp_cc_ops *ops = harp_cc_find(name);
  return ops ? ops->name : NULL;
}

void harp_flow_set_harp_peer(struct harp_tcp *tcp, uint32_t rto_min_us)
{
  tcp->harp_peer = true;
  tcp_ack_clear_quick(tcp);
  tcp->snd.nodelay = true;
  tcp_set_rto_min(tcp, rto_min_us * NS_PER_US);
}

void harp_flow_set_timeout(struct harp_tcp *tcp, uint32_t timeout_ms)
{
  tcp->user_timeout_ms = timeout_ms;
  bool open = tcp->snd.una != tcp->snd.end + tcp->snd.fin_sent;
  uint64_t when = tcp->last_progress + timeout_ms * NS_PER_MS;
  tcp_timer_set(tcp, TIMER_USER, timeout_ms && open ? when : TIMER_OFF);
}

void harp_flow_set_keepalive(struct harp_tcp *tcp, uint32_t idle_ms, uint32_t interval_ms,
                             uint32_t probes)
{
  tcp->keep_idle_ms = idle_ms;
  tcp->keep_interval_ms = interval_ms;
  tcp->keep_probes = probes;
  uint64_t when = tcp->last_receive + idle_ms * NS_PER_MS;
  tcp_timer_set(tcp, TIMER_KEEPALIVE, idle_ms ? when : TIMER_OFF);
}

/* --- Probes and state --- */

void harp_flow_probe(struct harp_tcp *tcp)
{
  if (tcp_synchronized(tcp)) {
    tcp_send_probe(tcp);
  }
}

/* Whether the peer is the next hop itself, and a segment was sent to it. */
static bool has_neighbour(const struct harp_tcp *tcp)
{
  return tcp->stack->link_header && tcp->neighbour && tcp->next_hop == tcp->remote_address;
}

void harp_flow_probe_neighbour(struct harp_tcp *tcp)
{
  if (has_neighbour(tcp)) {
    neighbour_probe(tcp->stack, tcp->neighbour);
  }
}

bool harp_flow_rcv_queue_empty(const struct harp_tcp *tcp)
{
  return !tcp->rcv.queue && !tcp->rcv.ooo;
}

uint16_t harp_flow_header_length(const struct harp_tcp *tcp)
{
  return (uint16_t)(tcp->stack->link_header + IP_HEADER + TCP_HEADER +
                    (tcp->timestamps ? TCP_TIMESTAMP_OPTION : 0));
}

bool harp_flow_fin_received(const struct harp_tcp *tcp) { return tcp->rcv.fin_received; }

bool harp_flow_at_end(const struct harp_tcp *tcp)
{
  return tcp->rcv.fin_received && tcp->rcv.queued == 0;
}

uint32_t harp_flow_unacked(const struct harp_tcp *tcp)
{
  uint32_t end = tcp->snd.end + (tcp->snd.fin_queued || tcp->snd.fin_sent);
  return tcp_synchronized(tcp) ? end - tcp->snd.una : 0;
}

bool harp_flow_drained(const struct harp_tcp *tcp)
{
  return !tcp->snd.fin_queued && tcp->snd.una == tcp->snd.end + tcp->snd.fin_sent;
}

struct harp_endpoint harp_flow_peer(const struct harp_tcp *tcp)
{
  return (struct harp_endpoint){tcp->remote_address, tcp->remote_port};
}

uint16_t harp_flow_local_port(const struct harp_tcp *tcp) { return tcp->local_port; }

void harp_flow_count_wait(struct harp_tcp *tcp) { tcp_wait_change(tcp, tcp->waits.now); }

/* Once our FIN is acknowledged, SND.UNA is beyond the data. */
static uint32_t unacked_data(const struct harp_tcp *tcp)
{
  bool some = tcp_synchronized(tcp) && seq_gt(tcp->snd.end, tcp->snd.una);
  return some ? tcp->snd.end - tcp->snd.una : 0;
}

void harp_flow_view(const struct harp_tcp *tcp, struct harp_flow_view *view)
{
  *view = (struct harp_flow_view){
      .state = tcp->state,
      .cwnd = tcp->cwnd,
      .ssthresh = tcp->ssthresh,
      .send_window = tcp->snd.wnd,
      .receive_window = tcp->rcv.right - tcp->rcv.nxt,
      .mss = tcp->snd.mss,
      .srtt_us = (uint32_t)(tcp->rtt.srtt / NS_PER_US),
      .rttvar_us = (uint32_t)(tcp->rtt.rttvar / NS_PER_US),
      .min_rtt_us = tcp->rtt.min == UINT64_MAX ? 0 : (uint32_t)(tcp->rtt.min / NS_PER_US),
      .rto_us = (uint32_t)(tcp->rtt.rto / NS_PER_US),
      .in_flight = tcp_in_flight(tcp),
      .retransmits = tcp->retransmits,
      .unacked = unacked_data(tcp),
      .probes = tcp->probes,
      .last_progress = tcp->last_progress,
      .last_receive = tcp->last_receive,
      .arp_failed = has_neighbour(tcp) ? tcp->neighbour->failed_at : 0,
      .bytes_in = tcp->bytes_in,
      .bytes_out = tcp->bytes_out,
      .ack_wait_ms = (uint32_t)(tcp_wait_time(tcp, TCP_WAIT_ACK) / NS_PER_MS),
      .window_wait_ms = (uint32_t)(tcp_wait_time(tcp, TCP_WAIT_WINDOW) / NS_PER_MS),
      .device_wait_ms = (uint32_t)(tcp_wait_time(tcp, TCP_WAIT_DEVICE) / NS_PER_MS),
  };
}
