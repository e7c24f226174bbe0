/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the peer of a link that waits for something is still there. Its process
 * may have been killed: then its kernel resets what reaches the closed port, so
 * the flow asks for a sign of life twice a second. Its host may be dead: then
 * nobody answers ARP for it. A process that is stopped looks like neither, and
 * has timeout_ms to come back (the user timeout and keepalives of the stack).
 */
#include <errno.h>

#include "plugin/link.h"

#define QUIET_TIME 400000000ull /* ns of silence before a probe, and between two of them */

void flow_watch_peer(struct link_flow *flow, uint64_t now)
{
  struct net_link *link = flow->link;
  if (!link || !flow->tcp || flow->state != FLOW_OPEN || atomic_load(&link->error)) {
    return;
  }
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  uint64_t quiet = now - view.last_receive;
  if (quiet < QUIET_TIME || now - flow->probed < QUIET_TIME || link_idle(link)) {
    return;
  }
  flow->probed = now;
  harp_flow_probe(flow->tcp);
}
