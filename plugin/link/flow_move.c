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
  flow->received_before += view.bytes_in - flow_expected_hello(flow);
  return true;
}

static bool may_release(const struct link_flow *flow, const struct flow_move *move)
{
  const struct net_link *link = move->link;
  return flow && !atomic_load(&move->lost) && !atomic_load(&link->closing) && !link_ended(link) &&
         flow->state == FLOW_OPEN && (link->sends || move->epoch > flow->epoch);
}

static void release(struct flow_move *move)
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

static void end(struct flow_move *move)
{
  struct link_flow *fresh = move->fresh;
  move->fresh = NULL;
  if (fresh) {
    fresh->move = NULL;
    flow_close_free(fresh, FLOW_CLOSE_RESET);
  }
  atomic_store(&move->step, MOVE_NONE);
}

static void connect_candidate(struct flow_move *move)
{
  struct net_link *link = move->link;
  if (atomic_load(&link->closing) || link_ended(link)) {
    end(move);
    return;
  }
  struct link_flow *fresh = flow_create(move->to->at);
  if (!fresh) {
    end(move); /* a later tick tries again */
    return;
  }
  fresh->move = move;
  fresh->number = move->number;
  fresh->epoch = move->epoch;
  move->fresh = fresh;
  atomic_store(&move->step, MOVE_HANDSHAKE);
  if (flow_write_hello(fresh, link, move->number) != 0 || flow_connect(fresh, move->peer) != 0) {
    end(move);
  }
}

/* The flow continues on the new connection. */
static void take_connection(struct link_flow *flow, struct link_flow *fresh)
{
  flow_move_connection(flow, fresh);
  flow->local_port = fresh->local_port;
  fresh->local_port = 0;
  flow->proof = fresh->proof;
  flow->handshake_left = 0;
  fresh->move = NULL;
  flow_free(fresh);
}

static void tell_moved(const struct link_flow *flow)
{
  harp_log_post(HARP_LOG_INFO, "HARP: flow %u to %s goes on over device %u (%s)", flow->number,
                flow->link->peer_name, flow->at->nic->device, flow->at->nic->engine->config.device);
}

static void adopt(struct flow_move *move)
{
  struct net_link *link = move->link;
  struct link_flow *flow = link->flows[move->number], *fresh = move->fresh;
  if (move->released) {
    flow_enter_instance(flow, move->to);
    flow->epoch = move->epoch;
    flow->peer = move->peer;
  }
  if (atomic_load(&link->closing)) {
    atomic_store(&move->step, MOVE_HANDSHAKE); /* flow_moves_end closes fresh as the link closes */
    return;
  }
  if (!move->released) {
    end(move);
    return;
  }
  if (!fresh || !fresh->tcp) {
    end(move); /* the flow has no connection: the sender moves it again */
    if (!link->sends) {
      flow_resume_inherited(flow); /* a receive may have been posted meanwhile */
    }
    return;
  }
  move->fresh = NULL;
  flow_move_accepted(move);
  take_connection(flow, fresh);
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
  case MOVE_RELEASE: release(move); break;
  case MOVE_ADOPT: adopt(move); break;
  case MOVE_NONE:
  case MOVE_HANDSHAKE: break;
  }
}

/* --- The beginning of a move --- */

/* Reserves the flow's move for this attempt. NULL: a move is under way. */
static struct flow_move *begin(struct link_instance *to, uint16_t number)
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
  struct flow_move *move = part ? begin(part, flow->number) : NULL;
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

bool flow_move_welcomed(struct link_flow *fresh, const struct welcome *welcome)
{
  struct flow_move *move = fresh->move;
  if (atomic_load(&move->step) != MOVE_HANDSHAKE) {
    return false;
  }
  move->welcome = *welcome;
  return request_release(move);
}

bool flow_move_in(struct link_flow *fresh, struct link_instance *to, const struct hello *hello)
{
  struct flow_move *move = begin(to, hello->flow);
  if (!move) {
    return false;
  }
  move->hello = *hello;
  move->epoch = hello->epoch;
  move->fresh = fresh;
  fresh->move = move;
  listener_remove_unauthenticated(fresh); /* it has shown the token, and the key */
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

void flow_move_lost(struct link_flow *fresh)
{
  struct flow_move *move = fresh->move;
  int waiting = MOVE_HANDSHAKE;
  fresh->move = NULL;
  move->fresh = NULL;
  /* If the move is in a later step, release keeps the old connection, or adopt finds that fresh is
   * gone. */
  atomic_store(&move->lost, true);
  atomic_compare_exchange_strong(&move->step, &waiting, MOVE_NONE);
}

/* --- Ticks and close --- */

void flow_move_watch(struct link_flow *fresh)
{
  /* A later step waits for the old owner, not for the peer. */
  bool waits = fresh->move && atomic_load(&fresh->move->step) == MOVE_HANDSHAKE;
  if (waits && flow_attempt_is_over(fresh)) {
    flow_close_free(fresh, FLOW_CLOSE_RESET);
  }
}

bool flow_attempt_is_over(const struct link_flow *fresh)
{
  uint64_t most = fresh->state == FLOW_OPENING ? ATTEMPT_TIME : HANDSHAKE_TIME;
  return harp_instance_running_time(fresh->instance) - fresh->born > most;
}

void flow_moves_end(struct net_link *link, const struct nic_instance *at, enum flow_close how)
{
  struct link_flow *next;
  for (struct link_flow *fresh = at->flows; fresh; fresh = next) {
    next = fresh->next;
    if (!fresh->move || fresh->move->link != link) {
      continue;
    }
    flow_move_lost(fresh);
    if (how == FLOW_CLOSE_FIN && fresh->state == FLOW_HANDSHAKE && fresh->tcp && link->sends) {
      /* The peer may have dropped the old connection for this one, so this one closes in order. */
      flow_end_attempt(fresh);
    } else {
      flow_close_free(fresh, FLOW_CLOSE_RESET);
    }
  }
}
