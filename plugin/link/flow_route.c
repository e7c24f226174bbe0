/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs a sending flow uses. A flow has a preferred route, on which it was opened: one of our
 * NICs and an address of the peer. The flow moves without an error (flow_move.c) if the route fails
 * and another NIC, here or at the peer, reaches the peer. It moves back when its preferred route
 * works again.
 */
#include <errno.h>

#include "harp/time_units.h"
#include "plugin/link/link.h"

enum {
  ROUTES = 32,
  REFUSALS_MOST = 10, /* attempts, ROUTE_TIME apart */
};
#define MOVE_BACK_TIME 1000000000ull /* ns between attempts to move back */
#define ROUTE_TIME 200000000ull      /* ns between attempts at least */

/* Adds a route, unless the list has it or is full. */
static void add_route(struct flow_route *list, unsigned *count, struct nic_instance *at,
                      struct harp_endpoint peer)
{
  for (unsigned i = 0; i < *count; i++) {
    if (flow_route_same(&list[i], &(struct flow_route){at, peer})) {
      return;
    }
  }
  if (*count < ROUTES) {
    list[(*count)++] = (struct flow_route){at, peer};
  }
}

/* The instance of a NIC that serves a flow of this number. NULL: the NIC does not reach the
 * address, or does not run; then it is started soon. */
static struct nic_instance *instance_towards(struct transport *transport, unsigned number,
                                             unsigned device, uint32_t address)
{
  struct transport_nic *nic = nic_driven(transport, device);
  if (!nic || !harp_engine_reaches(nic->engine, address)) {
    return NULL;
  }
  if (!nic_runs(nic)) {
    transport_want_nics(transport);
    return NULL;
  }
  return &nic->parts[number % nic_instances(nic)];
}

/* All routes of a flow, the best first: the preferred one; each NIC of the peer from our NIC of the
 * same device; all other pairs. */
static unsigned find_routes(const struct link_flow *flow, struct flow_route list[ROUTES])
{
  const struct nic_list *peers = link_peer_nics(flow->link);
  unsigned devices = flow->transport->nics.claims.devices.count, count = 0;
  add_route(list, &count, flow->preferred.at, flow->preferred.peer);
  /* Links begin with different NICs of the peer, so that a lost NIC's links spread over the rest.
   */
  for (unsigned i = 0; i < peers->count; i++) {
    const struct nic_list_entry *peer = &peers->of[(flow->link->id + i) % peers->count];
    struct nic_instance *at = instance_towards(flow->transport, flow->number, peer->device,
                                               peer->at.address);
    if (at) {
      add_route(list, &count, at, peer->at);
    }
  }
  for (unsigned device = 0; device < devices; device++) {
    struct nic_instance *at = instance_towards(flow->transport, flow->number, device,
                                               flow->preferred.peer.address);
    if (at) {
      add_route(list, &count, at, flow->preferred.peer);
    }
    for (unsigned i = 0; i < peers->count; i++) {
      at = instance_towards(flow->transport, flow->number, device, peers->of[i].at.address);
      if (at) {
        add_route(list, &count, at, peers->of[i].at);
      }
    }
  }
  return count;
}

struct flow_route flow_stripe(const struct link_flow *first, unsigned number)
{
  const struct nic_list *peers = link_peer_nics(first->link);
  struct flow_route pairs[NIC_LIST_ENTRIES + 1] = {first->preferred};
  unsigned count = 1;
  for (unsigned i = 0; i < peers->count; i++) {
    struct nic_instance *at = instance_towards(first->transport, number, peers->of[i].device,
                                               peers->of[i].at.address);
    if (at && at->nic != first->preferred.at->nic && peers->of[i].flags & NIC_LISTENS &&
        harp_engine_link_up(at->nic->engine)) {
      pairs[count++] = (struct flow_route){at, peers->of[i].at};
    }
  }
  return pairs[number % count];
}

bool link_has_routes(const struct net_link *link)
{
  /* A peer before WIRE_VERSION_NICS takes a flow's new connection only from the same address. */
  bool peer_follows = !link->sends || atomic_load(&link->peer_nics_known);
  return peer_follows && (link_peer_nics(link)->count > 1 || link->transport->driven > 1);
}

/* Begins to move the flow to the next route whose NIC is up. false: that is the flow's own route,
 * no NIC is up, or the move cannot begin. */
static bool try_next_route(struct link_flow *flow)
{
  struct flow_route list[ROUTES];
  struct flow_route current = {flow->at, flow->peer};
  unsigned count = find_routes(flow, list);
  for (unsigned i = 0; i < count; i++) {
    const struct flow_route *route = &list[flow->next_route++ % count];
    if (!harp_engine_link_up(route->at->nic->engine)) {
      continue;
    }
    return !flow_route_same(route, &current) && flow_move_out(flow, route->at, route->peer);
  }
  return false;
}

static void try_preferred_route(struct link_flow *flow, uint64_t now)
{
  struct flow_route current = {flow->at, flow->peer};
  if (flow_route_same(&current, &flow->preferred) || now - flow->tried < MOVE_BACK_TIME ||
      !harp_engine_link_up(flow->preferred.at->nic->engine)) {
    return;
  }
  flow->tried = now;
  flow_move_out(flow, flow->preferred.at, flow->preferred.peer);
}

/* The peer refuses the flow on every route that reaches it: it has closed the link, or its process
 * has ended. */
static void give_up(struct link_flow *flow)
{
  if (link_idle(flow->link) && !flow_owes(flow)) {
    link_peer_closed(flow->link); /* both sides had finished */
    return;
  }
  link_fail(flow->link, -ECONNRESET,
            "flow %u: its connection is dead, and the peer refuses a new one: the peer has closed "
            "the link, or its process ended: see that host's log",
            flow->number);
}

/* A peer also resets new connections as long as it handles an earlier move of the flow. So resets
 * count only after half of timeout_ms. Attempts are counted, and not time, because the peer's
 * answers may stay unread while this process does not run. */
static bool is_refused(const struct link_flow *flow)
{
  const struct flow_move *move = &flow->link->moves[flow->number];
  unsigned half = (unsigned)(flow_config(flow)->timeout_ms * NS_PER_MS / 2 / ROUTE_TIME);
  unsigned resets_most = half > REFUSALS_MOST ? half : REFUSALS_MOST;
  return atomic_load(&move->refusals) >= REFUSALS_MOST || atomic_load(&move->resets) >= resets_most;
}

/* Tries the routes in turn. The flow's own route comes first if its NIC is up. */
static bool try_routes(struct link_flow *flow, bool down, uint64_t now)
{
  if (is_refused(flow)) {
    give_up(flow);
    return true;
  }
  if (flow->candidate && !flow_attempt_is_over(flow->candidate)) {
    return true;
  }
  if (flow->candidate) {
    flow_close_free(flow->candidate, FLOW_CLOSE_RESET);
  } else if (flow->next_route > 0 && now - flow->tried < ROUTE_TIME) {
    return true; /* the last attempt was refused at once */
  }
  flow->tried = now;
  if (flow->next_route == 0 && !down && harp_engine_link_up(flow->at->nic->engine)) {
    flow->next_route = 1;
    return false;
  }
  return try_next_route(flow);
}

bool flow_watch_route(struct link_flow *flow, bool dead, uint64_t now)
{
  if (!link_has_routes(flow->link)) {
    return false;
  }
  if (flow_is_moving(flow)) {
    return true;
  }
  bool down = harp_instance_link_down(flow->instance);
  if (dead || down) {
    return try_routes(flow, down, now);
  }
  flow->next_route = 0;
  flow_move_accepted(&flow->link->moves[flow->number]);
  if (!flow->candidate) {
    try_preferred_route(flow, now);
  }
  return false;
}

void flow_watch_lost(struct link_flow *flow)
{
  if (!flow->link || flow->state != FLOW_OPEN || link_ended(flow->link)) {
    return;
  }
  if (!flow->link->sends && (flow->fin_in || flow->fin_waits)) {
    return; /* it needs no connection any more; see flow_watch_ended */
  }
  uint64_t running = harp_instance_running_time(flow->instance);
  if (flow->tcp || flow->lost == 0) {
    flow->lost = flow->tcp ? 0 : running;
    return;
  }
  if (running - flow->lost > flow_config(flow)->timeout_ms * NS_PER_MS) {
    link_fail(flow->link, -ETIMEDOUT,
              "flow %u: it lost its connection, and no NIC of this host reaches the peer: is the "
              "peer's host up, and does a firewall let TCP through?",
              flow->number);
  }
}

void flow_watch_ended(struct link_flow *flow)
{
  struct net_link *link = flow->link;
  if (!link || link->sends || flow->tcp || !flow->fin_in || link_ended(link)) {
    return;
  }
  uint64_t running = harp_instance_running_time(flow->instance);
  unsigned timeout_ms = flow_config(flow)->timeout_ms;
  if (link_idle(link)) {
    flow->lost = running;
  } else if (running - flow->lost > timeout_ms * NS_PER_MS) {
    link_fail(link, -ECONNRESET,
              "flow %u: the peer closed it, and no other flow brought the expected message within "
              "timeout_ms (%u): the peer aborted, or its process ended: see that host's log",
              flow->number, timeout_ms);
  }
}
