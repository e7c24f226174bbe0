/* SPDX-License-Identifier: Apache-2.0 */
/* A flow's life: connection, hello exchange, end, and lingering until the peer has all bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "plugin/link/link.h"

enum {
  KEEPALIVE_MAX_MS = 15000, /* cloud firewalls drop idle connections after 60 s or later */
  KEEPALIVE_PART = 8,       /* the first keepalive follows timeout_ms / 8 of idle time */
  KEEPALIVE_PROBES = 6,
  PORT_TRIES = 1024, /* local ports to try for a connection */
};

/* The state of the attempts that a new connection belongs to. NULL: it is a flow's first one. */
static struct flow_move *attempt_of(const struct link_flow *flow)
{
  const struct link_flow *old = flow->replaces;
  return old ? &old->link->moves[old->number] : flow->move;
}

static void on_established(void *user, struct harp_tcp *tcp)
{
  struct link_flow *flow = user;
  if (flow->replaces && !flow_is_dead(flow->replaces, harp_instance_now(flow->instance))) {
    flow_close_free(flow, FLOW_CLOSE_RESET); /* the old connection has recovered */
    return;
  }
  struct harp_flow_view view;
  harp_flow_view(tcp, &view);
  flow_trace(flow, HARP_TRACE_established, view.mss, harp_flow_peer(tcp).address);
  flow->state = FLOW_HANDSHAKE;
  struct flow_move *move = attempt_of(flow);
  if (move) {
    atomic_store(&move->hello_epoch, flow->epoch);
  }
  flow_send_handshake(flow, HELLO_SIZE);
}

int flow_write_hello(struct link_flow *flow, const struct net_link *link, uint16_t number)
{
  struct hello hello = {
      .version_min = WIRE_VERSION_MIN,
      .version_max = WIRE_VERSION_MAX,
      .link = link->id,
      .flow = number,
      .flows = link->flow_count,
      .epoch = flow->epoch,
      .mtu = harp_instance_port(flow->instance)->mtu,
      .flags = (flow->transport->checksum ? HELLO_CHECKED : 0) |
               (harp_instance_port(flow->instance)->shares_address ? HELLO_KERNEL_ADDRESS : 0) |
               (link->striped ? HELLO_STRIPED : 0),
  };
  memcpy(hello.token, link->handle.token, TOKEN_SIZE);
  int result = flow->transport->key.set ? proof_challenge(hello.proof) : 0;
  hello_write(&hello, flow->handshake_out);
  return result;
}

static void unlist(struct link_flow *flow)
{
  struct link_flow **link = &flow->at->flows;
  while (*link != flow) {
    link = &(*link)->next;
  }
  *link = flow->next;
}

/* Releases the flow's entry in the statistics file. */
static void release_entry(struct link_flow *flow)
{
  struct transport_nic *nic = flow->at->nic;
  if (flow->published >= 0) {
    struct harp_stat_flow none = {0};
    harp_statfile_flow_write(harp_statfile_flow(&nic->engine->statfile, (unsigned)flow->published),
                             &none);
    atomic_store(&nic->published[flow->published], false);
    flow->published = -1;
  }
}

void flow_free(struct link_flow *flow)
{
  harp_instance_stop_expecting(flow->instance, flow);
  unlist(flow);
  if (flow->move) {
    flow_move_lost(flow);
  }
  if (flow->replaces) {
    flow->replaces->candidate = NULL;
  }
  if (flow->candidate) {
    flow->candidate->replaces = NULL;
    flow_close_free(flow->candidate, FLOW_CLOSE_RESET);
  }
  release_entry(flow);
  if (flow->local_port) {
    nic_delay_port_release(flow->at, flow->local_port);
  }
  if (flow->listener) {
    listener_remove_unauthenticated(flow);
  }
  free(flow->chunks);
  flow_copies_free(flow);
  free(flow->inherited);
  free(flow);
}

/* Fails the link of a flow that has lost its connection and cannot get a new one. */
static void lost(struct net_link *link, const struct link_flow *flow, int error)
{
  if (error == -ETIMEDOUT) {
    link_fail(link, error,
              "flow %u: %s; the peer did not answer within timeout_ms (%u): is its process "
              "stopped, its host busy or down, a network link down, or does a firewall drop TCP?",
              flow->number, strerror(-error), link_config(link)->timeout_ms);
    return;
  }
  const char *remedy =
      error == -ECONNREFUSED
          ? "no process listens on the peer's port: did the peer's process end? If it runs, its "
            "`peers` may not contain this host's address, or a firewall there rejects this port (nft "
            "list ruleset)"
      : error == -EHOSTUNREACH
          ? "the peer's host does not answer ARP: are both NICs in one network?"
          : "the peer aborted it, or its process ended: see that host's log";
  link_fail(link, error ? error : -ECONNRESET, "flow %u: %s; %s", flow->number,
            strerror(error ? -error : ECONNRESET), remedy);
}

static int open_connection(struct link_flow *flow);

/* A stopped peer process does not answer ARP for an address of HARP's own. So the flow connects
 * again until its time to open is over (link_watch_opening). */
static bool tries_again(struct link_flow *flow, int error)
{
  const struct net_link *link = flow->link;
  if (error != -EHOSTUNREACH || !link || flow->state != FLOW_OPENING || link->peer_kernel_address ||
      link_ended(link)) {
    return false;
  }
  nic_delay_port_release(flow->at, flow->local_port);
  flow->local_port = 0;
  return open_connection(flow) == 0;
}

/* Whether the sender gave up a new connection of the flow before the welcome reached it. Another
 * attempt follows; flow_watch_lost limits the wait. */
static bool abandoned(const struct link_flow *flow, int error)
{
  const struct net_link *link = flow->link;
  return link && !link->sends && flow->state == FLOW_OPEN && flow->epoch > 0 && !flow->fin_in &&
         flow->handshake_left > 0 && error == -ECONNRESET;
}

/* Whether the peer may have dropped the sender's connection for a newer one, whose welcome never
 * arrived. Another attempt follows; flow_watch_lost limits the wait. */
static bool superseded(const struct link_flow *flow, int error)
{
  const struct net_link *link = flow->link;
  return link && link->sends && flow->state == FLOW_OPEN && error == -ECONNRESET &&
         atomic_load(&link->moves[flow->number].hello_epoch) != flow->connected_epoch;
}

/* Whether a new connection of the receiver's flow continues where this one ends. The bytes of this
 * one are kept then, because the next welcome says that they were received. */
static bool continues(const struct link_flow *flow, int error)
{
  return abandoned(flow, error) || (flow->link && !flow->link->sends && flow_is_moving(flow));
}

/* Whether the flow's FIN came before this end, so that all of its bytes were delivered, and other
 * flows may still bring messages. Their instances may run later, when the peer's process has ended
 * and its kernel has reset this connection. flow_watch_ended limits the wait. */
static bool ended_in_order(const struct link_flow *flow)
{
  const struct net_link *link = flow->link;
  return flow->fin_in && !link->sends && atomic_load(&link->flows_ended) < link->flow_count;
}

/* Frees a flow that has no link: a lingering flow of a closed link, an unauthenticated peer, or the
 * new connection of an attempt. A reset or refusal of an attempt is counted. The attempt's link
 * fails if its flow has no connection now, unless the peer refused the attempt and there are other
 * routes. */
static void free_without_link(struct link_flow *flow, int error)
{
  const struct link_flow *old = flow->replaces;
  struct flow_move *move = attempt_of(flow);
  bool refused = error == -ECONNRESET || error == -ECONNREFUSED;
  if (move && refused) {
    flow_move_refused(move, error);
  }
  if (old && !old->tcp && !(refused && link_has_routes(old->link))) {
    /* The peer has dropped both. The flow lost its own connection by a reset. */
    lost(old->link, flow, error == -ECONNREFUSED ? -ECONNRESET : error);
  }
  flow_free(flow);
}

static void on_closed(void *user, struct harp_tcp *tcp, int error)
{
  struct link_flow *flow = user;
  struct net_link *link = flow->link;
  bool waits = abandoned(flow, error) || superseded(flow, error);
  flow_trace(flow, HARP_TRACE_closed, (uint32_t)-error, 0);
  if (continues(flow, error) && !flow_keep_received(flow)) {
    link_fail(link, -ENOMEM, "flow %u: no memory for the bytes of its old connection",
              flow->number);
  }
  flow->fin_waits = flow->inherited && harp_flow_at_end(tcp);
  flow->tcp = NULL;
  if (tries_again(flow, error)) {
    return;
  }
  flow_sched_end(flow);
  harp_instance_stop_expecting(flow->instance, flow);
  if (!link) {
    free_without_link(flow, error);
    return;
  }
  if ((flow->candidate || flow_is_moving(flow)) && error != -ETIMEDOUT) {
    return; /* the peer has dropped this connection for the new one already */
  }
  if (waits || flow->fin_waits) {
    return;
  }
  flow->state = FLOW_CLOSED;
  flow->lost = harp_instance_running_time(flow->instance);
  if (flow->fin_in && link_idle(link)) {
    link_peer_closed(link); /* both sides had finished: how the connection ended does not matter */
  } else if (!ended_in_order(flow)) {
    lost(link, flow, error);
  }
}

/* Handles the peer's FIN, once all bytes before it were delivered. Bytes without a posted receive
 * stay in the stack until flow_resume. */
void flow_readable(void *user, struct harp_tcp *tcp)
{
  struct link_flow *flow = user;
  bool at_end = flow->tcp ? harp_flow_at_end(flow->tcp) : flow->fin_waits;
  if (!at_end || flow->fin_in || flow->inherited) {
    return;
  }
  flow->fin_in = true;
  flow->lost = harp_instance_running_time(flow->instance); /* flow_watch_ended counts from here */
  struct net_link *link = flow->link;
  if (!link) {
    return;
  }
  bool in_chunk = flow->request || flow->rx_header_size > 0;
  unsigned ended = atomic_fetch_add(&link->flows_ended, 1) + 1u;
  /* Read after the count: the flows that were counted before have delivered their messages. Read
   * once: a receive may be posted at any moment. */
  bool idle = link_idle(link);
  /* Another flow may still bring the expected data, until the last flow ends. */
  bool waits = ended == link->flow_count && !link->sends && !idle;
  if (flow->state != FLOW_OPEN || in_chunk || waits) {
    link_fail(link, -ECONNRESET,
              "flow %u: the peer closed while messages were still expected; "
              "the peer aborted it, or its process ended: see that host's log",
              flow->number);
  } else if (idle) {
    link_peer_closed(link);
  }
}

static const struct harp_flow_ops sending_ops = {
    .established = on_established,
    .pull = flow_pull,
    .deliver = flow_deliver,
    .acked = flow_acked,
    .readable = flow_readable,
    .closed = on_closed,
};

static const struct harp_flow_ops receiving_ops = {
    .deliver = flow_deliver,
    .rx_buffer = flow_rx_buffer,
    .acked = flow_acked,
    .readable = flow_readable,
    .closed = on_closed,
};

struct link_flow *flow_create(struct nic_instance *at)
{
  struct link_flow *flow = calloc(1, sizeof *flow);
  if (!flow) {
    return NULL;
  }
  flow->transport = at->nic->transport;
  flow->at = at;
  flow->instance = at->instance;
  flow->born = harp_instance_running_time(at->instance);
  flow->opened = harp_clock_wall_ns();
  flow_sched_end(flow);
  flow->published = -1;
  flow->next = at->flows;
  at->flows = flow;
  return flow;
}

/* Connects from a local port that has no connection to the peer. An earlier link's connection may
 * stay in TIME-WAIT longer than PORT_RELEASE_DELAY_MS. Occupied ports are released only at the end,
 * so that each port is tried once. flow->local_port: a port to try first, or 0. 0 with
 * flow->local_port and flow->tcp set, or -EADDRINUSE, -ENOMEM. */
static int connect_from_some_port(struct link_flow *flow, struct harp_endpoint peer)
{
  struct harp_engine *engine = flow->at->nic->engine;
  unsigned queue = harp_instance_number(flow->instance), passed = 0;
  uint16_t port = flow->local_port, occupied[PORT_TRIES];
  int result;
  flow->local_port = 0;
  do {
    result = port ? 0 : harp_engine_try_reserve(engine, queue, 0, &port);
    if (result != 0) {
      break;
    }
    result = harp_flow_connect(harp_instance_stack(flow->instance), port, peer, &sending_ops, flow,
                               &flow->tcp);
    if (result == 0) {
      flow->local_port = port;
    } else {
      occupied[passed++] = port;
      port = 0;
    }
  } while (result == -EADDRINUSE && passed < PORT_TRIES);
  while (passed > 0) {
    harp_engine_release(engine, queue, occupied[--passed]);
  }
  return result;
}

/* Opens the connection to flow->peer. */
static int open_connection(struct link_flow *flow)
{
  int result = connect_from_some_port(flow, flow->peer);
  if (result == 0) {
    harp_flow_set_timeout(flow->tcp, flow_config(flow)->timeout_ms);
    flow_trace(flow, HARP_TRACE_connect, flow->peer.port, flow->peer.address);
  }
  return result;
}

int flow_connect(struct link_flow *flow, struct harp_endpoint peer)
{
  flow->peer = peer;
  flow->chunks = calloc(FLOW_CHUNKS, sizeof *flow->chunks);
  return flow->chunks ? open_connection(flow) : -ENOMEM;
}

void flow_accept(struct link_flow *flow, struct harp_tcp *tcp)
{
  flow->tcp = tcp;
  flow->state = FLOW_HANDSHAKE;
  harp_flow_attach(tcp, &receiving_ops, flow);
  struct harp_endpoint peer = harp_flow_peer(tcp);
  flow_trace(flow, HARP_TRACE_accept, peer.port, peer.address);
  harp_flow_set_timeout(tcp, flow_config(flow)->timeout_ms);
}

void flow_move_connection(struct link_flow *flow, struct link_flow *from)
{
  flow->tcp = from->tcp;
  flow->fin_waits = false;
  from->tcp = NULL;
  /* Readers of the statistics file take it for a new flow, as its counters begin again. */
  flow_count_wait(flow);
  flow->opened = harp_clock_wall_ns();
  flow->message_time = flow->stalled_time = 0;
  memset(flow->message_times, 0, sizeof flow->message_times);
  harp_flow_attach(flow->tcp, flow->link->sends ? &sending_ops : &receiving_ops, flow);
}

/* Reserves an entry in the statistics file. Unauthenticated peers get none, since they could use up
 * all entries. */
static void find_entry(struct link_flow *flow)
{
  for (int i = 0; i < HARP_STAT_FLOWS && flow->published < 0; i++) {
    if (!atomic_exchange(&flow->at->nic->published[i], true)) {
      flow->published = i;
    }
  }
}

void flow_set_link(struct link_flow *flow, struct net_link *link, uint16_t number)
{
  flow->link = link;
  flow->part = link_part(link, flow->at);
  flow->number = number;
  link->flows[number] = flow;
  find_entry(flow);
}

void flow_drop_inherited(struct link_flow *flow)
{
  free(flow->inherited);
  flow->inherited = NULL;
  flow->inherited_size = flow->inherited_taken = 0;
}

/* Ends the connection and the attempt to replace it. */
static void drop_connection(struct link_flow *flow)
{
  harp_instance_stop_expecting(flow->instance, flow);
  if (flow->candidate) {
    flow_close_free(flow->candidate, FLOW_CLOSE_RESET);
  }
  if (flow->tcp) {
    harp_flow_abort(flow->tcp);
    flow->tcp = NULL;
  }
  flow_sched_end(flow);
}

void flow_leave_instance(struct link_flow *flow)
{
  drop_connection(flow);
  if (flow->local_port) {
    nic_delay_port_release(flow->at, flow->local_port);
    flow->local_port = 0;
  }
  flow->offered = NULL;
  release_entry(flow);
  unlist(flow);
}

void flow_enter_instance(struct link_flow *flow, struct link_instance *part)
{
  flow->at = part->at;
  flow->instance = part->instance;
  flow->part = part;
  flow->next = flow->at->flows;
  flow->at->flows = flow;
  /* The running times of instances differ. */
  flow->lost = flow->born = harp_instance_running_time(flow->instance);
  if (flow->number == 0) {
    flow->link->called_at = flow->lost;
  }
  find_entry(flow);
}

void flow_send_handshake(struct link_flow *flow, uint32_t size)
{
  flow->handshake_left = size;
  harp_flow_push(flow->tcp, flow->handshake_out, size, true);
}

void flow_open(struct link_flow *flow)
{
  flow_reopen(flow);
  link_flow_opened(flow->link);
}

/* Keepalives detect a silent peer within timeout_ms, even if this side only receives. The time
 * counts from the last received segment, which on an idle link arrived at most `idle` ms before the
 * peer stopped. */
static void keep_alive(const struct link_flow *flow)
{
  uint32_t timeout = flow_config(flow)->timeout_ms, part = timeout / KEEPALIVE_PART;
  uint32_t idle = part < KEEPALIVE_MAX_MS ? part : KEEPALIVE_MAX_MS;
  uint32_t interval = (timeout - part) / KEEPALIVE_PROBES;
  harp_flow_set_keepalive(flow->tcp, idle, interval > 0 ? interval : 1, KEEPALIVE_PROBES);
}

void flow_reopen(struct link_flow *flow)
{
  flow->state = FLOW_OPEN;
  flow_trace(flow, HARP_TRACE_hello, (uint32_t)flow->link->id, flow->epoch);
  flow_sched_begin(flow);
  harp_flow_set_harp_peer(flow->tcp, flow_config(flow)->rto_min_us);
  keep_alive(flow);
  harp_flow_ready(flow->tcp);
}

void flow_end_attempt(struct link_flow *candidate)
{
  candidate->lost = harp_instance_running_time(candidate->instance);
  keep_alive(candidate);
  harp_flow_close(candidate->tcp);
}

void flow_reset(struct link_flow *flow)
{
  drop_connection(flow);
  flow_drop_inherited(flow);
  flow_count_wait(flow);
  flow->stalled = false;
  flow->request = NULL;
  flow->state = FLOW_CLOSED;
}

/* Ends the candidate of a flow that closes with FIN. The peer may have replaced the old connection
 * once the candidate's hello is sent, so the candidate must close with FIN, too. */
static void close_candidate(struct link_flow *candidate)
{
  if (candidate->state != FLOW_HANDSHAKE || !candidate->tcp) {
    flow_close_free(candidate, FLOW_CLOSE_RESET);
    return;
  }
  candidate->replaces->candidate = NULL;
  candidate->replaces = NULL;
  flow_end_attempt(candidate);
}

static void unlink_flow(struct link_flow *flow)
{
  if (flow->link) {
    flow->link->flows[flow->number] = NULL;
    flow->link = NULL;
  }
}

/* Leaves the connection of a drained flow to its stack, which is destroyed next: a reset would
 * report an error to the peer. */
static void leave_connection(struct link_flow *flow)
{
  if (flow->tcp) {
    harp_flow_attach(flow->tcp, &harp_flow_no_ops, NULL);
  }
}

void flow_close_free(struct link_flow *flow, enum flow_close how)
{
  if (how == FLOW_CLOSE_EXIT && flow_drained(flow)) {
    leave_connection(flow);
    flow_free(flow);
    return;
  }
  harp_instance_stop_expecting(flow->instance, flow);
  unlink_flow(flow);
  bool in_order = how == FLOW_CLOSE_FIN && flow->state == FLOW_OPEN && !flow->request;
  if (in_order && flow->candidate) {
    close_candidate(flow->candidate);
  }
  if (in_order && flow->tcp && harp_flow_rcv_queue_empty(flow->tcp) && !flow->inherited) {
    flow->lost = harp_instance_running_time(flow->instance);
    harp_flow_close(flow->tcp); /* it lingers, and on_closed frees it */
    return;
  }
  flow_reset(flow);
  flow_free(flow);
}

bool flow_drained(const struct link_flow *flow)
{
  if (!flow->tcp || harp_flow_drained(flow->tcp)) {
    return true;
  }
  /* A peer closes only when it is idle, so it does not need our FIN. */
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  return flow->fin_in && view.unacked == 0;
}

void flow_publish(struct link_flow *flow)
{
  if (flow->published < 0 || !flow->tcp) {
    return;
  }
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  struct harp_endpoint peer = harp_flow_peer(flow->tcp);
  struct harp_stat_flow entry = {
      .state = view.state,
      .link = flow->link ? (uint32_t)flow->link->id : 0,
      .flow = flow->number,
      .instance = (uint8_t)harp_instance_number(flow->instance),
      .direction = flow->link ? (flow->link->sends ? 'S' : 'R') : 0,
      .local_address = harp_instance_port(flow->instance)->address,
      .peer_address = peer.address,
      .local_port = harp_flow_local_port(flow->tcp),
      .peer_port = peer.port,
      .mss = view.mss,
      .cwnd = view.cwnd,
      .ssthresh = view.ssthresh,
      .send_window = view.send_window,
      .receive_window = view.receive_window,
      .in_flight = view.in_flight,
      .srtt_us = view.srtt_us,
      .rttvar_us = view.rttvar_us,
      .min_rtt_us = view.min_rtt_us,
      .rto_us = view.rto_us,
      .retransmits = view.retransmits,
      .bytes_in = view.bytes_in,
      .bytes_out = view.bytes_out,
      .opened_ns = flow->opened,
      .ack_wait_ms = view.ack_wait_ms,
      .window_wait_ms = view.window_wait_ms,
      .device_wait_ms = view.device_wait_ms,
      .receive_wait_ms = (uint32_t)(flow->stalled_time / 1000000),
      .message_time_ns = flow->message_time,
  };
  memcpy(entry.message_times, flow->message_times, sizeof entry.message_times);
  harp_statfile_flow_write(
      harp_statfile_flow(&flow->at->nic->engine->statfile, (unsigned)flow->published), &entry);
}
