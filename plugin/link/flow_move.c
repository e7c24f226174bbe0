/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow moves to another NIC, or to another NIC of the peer, and gets a new connection there. The
 * flow object stays the same. The instance of the new route owns it afterwards.
 *
 * A move takes three steps. Each step runs under the poll lock of its owner's instance, and posts
 * the next step:
 *
 *   connect   new owner   sender: opens a connection; receiver: has accepted one
 *   release   old owner   ends the old connection and gives the flow away
 *   adopt     new owner   gives the new connection to the flow
 *
 * The receiver drops the old connection before it answers the hello, so no late segment can reach a
 * buffer. Bytes that it has acknowledged but not delivered move to the new owner in a copy. The
 * welcome tells how many bytes of the flow it has received, and the sender continues from there.
 *
 * A flow has one move at a time. link_detach ends a move: after it has set `closing`, no step gives
 * a flow away.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/log.h"
#include "plugin/link/link.h"

/* Bytes of replaced connections that a flow keeps for receives that are not posted yet. Each
 * connection may bring one more window, and a peer may replace connections as often as it likes. */
#define INHERITED_MOST ((size_t)64 << 20)
#define ATTEMPT_TIME 300000000ull    /* ns for a connection to open before another route is tried */
#define HANDSHAKE_TIME 1000000000ull /* ns; the same for the answer to the hello */

/* --- Old owner --- */

/* Copies the bytes that the peer regards as received and that no posted receive has taken yet. */
static bool inherit_unread(struct link_flow *flow)
{
  uint32_t unread = harp_flow_unread(flow->tcp);
  size_t kept = flow->inherited_size - flow->inherited_taken;
  if (unread == 0) {
    return true;
  }
  if (kept + unread > INHERITED_MOST) {
    link_fail(flow->link, -ENOBUFS,
              "flow %u: the peer has replaced its connection again and again, and sent %zu MiB "
              "that no receive was posted for; is the peer hostile, or do its NICs fail by turns?",
              flow->number, (kept + unread) >> 20);
    return false;
  }
  uint8_t *bytes = malloc(kept + unread);
  if (!bytes) {
    return false;
  }
  if (kept > 0) {
    memcpy(bytes, flow->inherited + flow->inherited_taken, kept);
  }
  harp_flow_read(flow->tcp, bytes + kept, unread, false);
  free(flow->inherited);
  flow->inherited = bytes;
  flow->inherited_size = kept + unread;
  flow->inherited_taken = 0;
  return true;
}

bool flow_keep_received(struct link_flow *flow)
{
  struct harp_flow_view view;
  if (!flow->tcp) {
    return true;
  }
  if (!inherit_unread(flow)) {
    return false;
  }
  harp_flow_view(flow->tcp, &view);
  flow->received_before += view.bytes_in - flow_hello_bytes(flow);
  return true;
}

static bool may_release(const struct link_flow *flow, const struct flow_move *move)
{
  const struct net_link *link = move->link;
  return flow && !atomic_load(&move->lost) && !atomic_load(&link->closing) && !link_ended(link) &&
         flow->state == FLOW_OPEN && (link->sends || move->epoch > flow->epoch);
}

static void release_flow(struct flow_move *move)
{
  struct net_link *link = move->link;
  struct link_flow *flow = link->flows[move->number];
  move->released = may_release(flow, move) && (link->sends || flow_keep_received(flow));
  if (move->released) {
    flow_leave_instance(flow);
    flow->part = move->to; /* the new owner's from here on */
  }
  atomic_store(&move->step, MOVE_ADOPT);
  harp_instance_post(move->to->instance, &move->post);
}

/* --- New owner --- */

static void end_move(struct flow_move *move)
{
  struct link_flow *candidate = move->candidate;
  move->candidate = NULL;
  if (candidate) {
    candidate->move = NULL;
    flow_close_free(candidate, FLOW_CLOSE_RESET);
  }
  atomic_store(&move->step, MOVE_NONE);
}

static void connect_candidate(struct flow_move *move)
{
  struct net_link *link = move->link;
  if (atomic_load(&link->closing) || link_ended(link)) {
    end_move(move);
    return;
  }
  struct link_flow *candidate = flow_create(move->to->at);
  if (!candidate) {
    end_move(move); /* a later tick tries again */
    return;
  }
  candidate->move = move;
  candidate->number = move->number;
  candidate->epoch = move->epoch;
  move->candidate = candidate;
  atomic_store(&move->step, MOVE_HANDSHAKE);
  if (flow_write_hello(candidate, link, move->number) != 0 ||
      flow_connect(candidate, move->peer) != 0) {
    end_move(move);
  }
}

/* The flow continues on the new connection. */
static void take_connection(struct link_flow *flow, struct link_flow *candidate)
{
  flow_move_connection(flow, candidate);
  flow->local_port = candidate->local_port;
  candidate->local_port = 0;
  flow->proof = candidate->proof;
  flow->handshake_left = 0;
  candidate->move = NULL;
  flow_free(candidate);
}

static void tell_moved(const struct link_flow *flow)
{
  harp_log_post(HARP_LOG_INFO, "HARP: flow %u to %s goes on over device %u (%s)", flow->number,
                flow->link->peer_name, flow->at->nic->device, flow->at->nic->engine->config.device);
}

static void adopt(struct flow_move *move)
{
  struct net_link *link = move->link;
  struct link_flow *flow = link->flows[move->number], *candidate = move->candidate;
  if (move->released) {
    flow_enter_instance(flow, move->to);
    flow->epoch = move->epoch;
    flow->peer = move->peer;
  }
  if (atomic_load(&link->closing)) {
    /* flow_moves_end closes the candidate as the link closes. */
    atomic_store(&move->step, MOVE_HANDSHAKE);
    return;
  }
  if (!move->released) {
    end_move(move);
    return;
  }
  if (!candidate || !candidate->tcp) {
    end_move(move); /* the flow has no connection: the sender moves it again */
    if (!link->sends) {
      flow_resume_inherited(flow); /* a receive may have been posted meanwhile */
    }
    return;
  }
  move->candidate = NULL;
  flow_move_accepted(move);
  take_connection(flow, candidate);
  if (link->sends) {
    flow_continue_sending(flow, &move->welcome);
    tell_moved(flow);
    flow_readable(flow, flow->tcp); /* a FIN may have come behind the welcome */
  } else {
    listener_continue(flow, &move->hello);
    flow_resume_inherited(flow);
  }
  atomic_store(&move->step, MOVE_NONE);
}

static void move_run(struct harp_post *post, struct harp_instance *instance)
{
  struct flow_move *move = (struct flow_move *)post;
  switch ((enum move_step)atomic_load(&move->step)) {
  case MOVE_CONNECT: connect_candidate(move); break;
  case MOVE_RELEASE: release_flow(move); break;
  case MOVE_ADOPT: adopt(move); break;
  case MOVE_NONE:
  case MOVE_HANDSHAKE: break;
  }
}

/* --- The beginning of a move --- */

/* Reserves the flow's move for this attempt. NULL: a move is under way. */
static struct flow_move *reserve_move(struct link_instance *to, uint16_t number)
{
  struct net_link *link = to->link;
  struct flow_move *move = &link->moves[number];
  int none = MOVE_NONE;
  if (!atomic_compare_exchange_strong(&move->step, &none, MOVE_HANDSHAKE)) {
    return NULL;
  }
  move->post.run = move_run;
  move->link = link;
  move->number = number;
  move->to = to;
  move->released = false;
  atomic_store(&move->lost, false);
  return move;
}

/* Asks the flow's owner to give it away. false: the owner was asked before. The flows of
 * a link that closes must not be read; flow_moves_end then ends the move. */
static bool request_release(struct flow_move *move)
{
  int waiting = MOVE_HANDSHAKE;
  if (atomic_load(&move->link->closing)) {
    return true;
  }
  if (!atomic_compare_exchange_strong(&move->step, &waiting, MOVE_RELEASE)) {
    return false;
  }
  struct link_instance *owner = move->link->flows[move->number]->part;
  harp_instance_post(owner->instance, &move->post);
  return true;
}

bool flow_move_out(struct link_flow *flow, struct nic_instance *to, struct harp_endpoint peer)
{
  struct link_instance *part = link_part(flow->link, to);
  struct flow_move *move = part ? reserve_move(part, flow->number) : NULL;
  if (!move) {
    return false;
  }
  move->epoch = ++flow->epoch;
  move->peer = peer;
  flow_trace(flow, HARP_TRACE_fence, flow->epoch, (uint32_t)flow->acked);
  atomic_store(&move->step, MOVE_CONNECT);
  harp_instance_post(to->instance, &move->post);
  return true;
}

bool flow_move_welcomed(struct link_flow *candidate, const struct welcome *welcome)
{
  struct flow_move *move = candidate->move;
  if (atomic_load(&move->step) != MOVE_HANDSHAKE) {
    return false;
  }
  move->welcome = *welcome;
  return request_release(move);
}

bool flow_move_in(struct link_flow *candidate, struct link_instance *to, const struct hello *hello)
{
  struct flow_move *move = reserve_move(to, hello->flow);
  if (!move) {
    return false;
  }
  move->hello = *hello;
  move->epoch = hello->epoch;
  move->candidate = candidate;
  candidate->move = move;
  listener_remove_unauthenticated(candidate); /* it has shown the token, and the key */
  request_release(move);
  return true;
}

void flow_move_refused(struct flow_move *move, int error)
{
  atomic_fetch_add(error == -ECONNREFUSED ? &move->refusals : &move->resets, 1);
}

void flow_move_accepted(struct flow_move *move)
{
  atomic_store(&move->refusals, 0);
  atomic_store(&move->resets, 0);
}

void flow_move_lost(struct link_flow *candidate)
{
  struct flow_move *move = candidate->move;
  int waiting = MOVE_HANDSHAKE;
  candidate->move = NULL;
  move->candidate = NULL;
  /* If the move is in a later step, release_flow keeps the old connection, or adopt finds that
   * the candidate is gone. */
  atomic_store(&move->lost, true);
  atomic_compare_exchange_strong(&move->step, &waiting, MOVE_NONE);
}

/* --- Ticks and close --- */

void flow_move_watch(struct link_flow *candidate)
{
  /* A later step waits for the old owner, not for the peer. */
  bool waits = candidate->move && atomic_load(&candidate->move->step) == MOVE_HANDSHAKE;
  if (waits && flow_attempt_is_over(candidate)) {
    flow_close_free(candidate, FLOW_CLOSE_RESET);
  }
}

bool flow_attempt_is_over(const struct link_flow *candidate)
{
  uint64_t most = candidate->state == FLOW_OPENING ? ATTEMPT_TIME : HANDSHAKE_TIME;
  return harp_instance_running_time(candidate->instance) - candidate->born > most;
}

void flow_moves_end(struct net_link *link, const struct nic_instance *at, enum flow_close how)
{
  struct link_flow *next;
  for (struct link_flow *candidate = at->flows; candidate; candidate = next) {
    next = candidate->next;
    if (!candidate->move || candidate->move->link != link) {
      continue;
    }
    flow_move_lost(candidate);
    if (how == FLOW_CLOSE_FIN && candidate->state == FLOW_HANDSHAKE && candidate->tcp &&
        link->sends) {
      /* The peer may have dropped the old connection for this one, so this one closes in order. */
      flow_end_attempt(candidate);
    } else {
      flow_close_free(candidate, FLOW_CLOSE_RESET);
    }
  }
}
