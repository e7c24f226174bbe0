/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the peer of a link that waits for something is still there. Its process
 * may have been killed: then its kernel resets what reaches the closed port, so
 * the flow asks for a sign of life twice a second. Its host may be dead: then
 * nobody answers ARP for it. A process that is stopped looks like neither, and
 * has timeout_ms to come back (the user timeout and keepalives of the stack).
 */
#include <errno.h>

#include "plugin/link/link.h"

#define QUIET_TIME 400000000ull /* ns of silence before a probe, and between two of them */
#define DOUBT_TIME 800000000ull /* ns of silence before the host is asked by ARP */
#define ARP_ROUND 8000000000ull /* ns that the requests of one round take */

/* Its kernel answers ARP as long as the host lives. A round of requests says nothing if it ended
 * before the link began to wait, or began while this host's own link was down. */
static bool host_is_dead(const struct link_flow *flow, const struct harp_flow_view *view)
{
  struct harp_instance *instance = flow->instance;
  return flow->link->peer_kernel_address && view->arp_failed > flow->waits_since &&
         harp_instance_link_up(instance) && view->arp_failed > instance->link_changed + ARP_ROUND;
}

void flow_watch_peer(struct link_flow *flow, uint64_t now)
{
  struct net_link *link = flow->link;
  if (!link || !flow->tcp || flow->state != FLOW_OPEN || atomic_load(&link->error)) {
    return;
  }
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  uint64_t quiet = now - view.last_receive;
  if (quiet < QUIET_TIME || link_idle(link)) {
    flow->waits_since = now;
    return;
  }
  if (host_is_dead(flow, &view)) {
    link_fail(link, -EHOSTDOWN,
              "flow %u: its host does not answer ARP any more: is it down, or "
              "its link?",
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
}
