/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the peer is alive while a link has outstanding requests, or a flow unacknowledged
 * bytes. The kernel of a killed process resets segments to its closed port, so the flow probes a
 * silent peer about twice a second. A dead host does not answer ARP. A stopped process shows
 * neither sign, and has timeout_ms to continue (the user timeout and keepalives of the stack).
 */
#include <errno.h>

#include "plugin/link/link.h"

#define QUIET_TIME 400000000ull /* ns of silence before a probe, and between two probes */
#define DOUBT_TIME 800000000ull /* ns of silence before the neighbour is probed by ARP */
/* ns of one round of ARP requests: a known neighbour gets 8, one a second. */
#define ARP_ROUND 8000000000ull

/* Whether the peer's host is dead: its kernel owns the address and answered no request of a round.
 * Three rounds prove nothing: one on a link with other routes (a NIC may be silent alone, and the
 * sender moves the flow), one that ended before the link began to wait, and one that began while
 * our own network link was down. */
static bool host_is_dead(const struct link_flow *flow, const struct harp_flow_view *view)
{
  struct harp_instance *instance = flow->instance;
  if (link_has_routes(flow->link)) {
    return false;
  }
  return flow->link->peer_kernel_address && view->arp_failed > flow->waits_since &&
         harp_instance_link_up(instance) &&
         view->arp_failed > harp_instance_link_changed(instance) + ARP_ROUND;
}

/* Starts the other NICs if the peer may have to come over one of them. It may have bytes for this
 * side even if no receive is posted here. */
static void start_other_nics(const struct link_flow *flow, const struct harp_flow_view *view,
                             bool doubted)
{
  bool silent = doubted || view->probes >= SILENT_PROBES;
  if ((silent || harp_instance_link_down(flow->instance)) && link_has_routes(flow->link)) {
    transport_want_nics(flow->transport);
  }
}

void flow_watch_peer(struct link_flow *flow, uint64_t now)
{
  struct net_link *link = flow->link;
  if (!link || !flow->tcp || flow->state != FLOW_OPEN || link_ended(link)) {
    return;
  }
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  uint64_t quiet = now - view.last_receive;
  if (quiet < QUIET_TIME || (link_idle(link) && !flow_owes(flow))) {
    flow->waits_since = now;
    start_other_nics(flow, &view, false);
    return;
  }
  if (host_is_dead(flow, &view)) {
    link_fail(link, -EHOSTDOWN,
              "flow %u: the peer's host does not answer ARP any more: is the host down, or its "
              "network link?",
              flow->number);
    return;
  }
  if (now - flow->probed >= QUIET_TIME) {
    flow->probed = now;
    harp_flow_probe(flow->tcp);
  }
  if (quiet > DOUBT_TIME) {
    harp_flow_probe_neighbour(flow->tcp); /* at most once a second */
  }
  start_other_nics(flow, &view, quiet > DOUBT_TIME);
}
