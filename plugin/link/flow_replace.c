/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow gets a new connection if its connection is dead but the peer is alive, for example because
 * a path drops its packets or a firewall has lost its state. The link continues without an error.
 * The sender opens the connection from another local port, and its hello names the flow to
 * continue. The receiver drops the old connection before it answers, so no late segment can reach a
 * buffer. Its welcome tells how many bytes of the flow it has received, and the sender continues
 * from there.
 */
#include <errno.h>

#include "harp/engine/log.h"
#include "harp/time_units.h"
#include "plugin/link/link.h"

/* Time without progress, ns, after which a flow is dead if the peer sends on other flows: this, or
 * 4 RTO if that is more. */
#define STALL_MIN 100000000ull
/* The same if it does not: this, or 8 RTO. */
#define STALL_ALONE 1000000000ull
#define STALL_ROUTES 300000000ull      /* the same, if another NIC may reach the peer */
#define STALL_MOST 2000000000ull       /* ns; a pause of the peer may make the RTO much longer */
#define SILENCE_MIN 300000000ull       /* ns without a segment before probes count as unanswered */
#define REPORT_TIME (2 * HARP_TICK_NS) /* ns: a doubt of a flow makes the others probe */
#define PORT_TIME 1000000000ull        /* ns without an answer, before another port is tried */
enum { EPOCHS_LEAST = 2 }; /* reopening attempts; before that, the stack's user timeout decides */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Limits a stall to half of timeout_ms; the other half remains for a new connection. */
static uint64_t bounded(const struct link_flow *flow, uint64_t stall_limit)
{
  uint64_t half = flow_config(flow)->timeout_ms * NS_PER_MS / 2;
  return smaller(stall_limit, larger(half, STALL_MIN));
}

/* The stall after which a flow is dead, whatever the peer sends on other flows, ns. */
static uint64_t alone_limit(const struct link_flow *flow, uint64_t rto)
{
  uint64_t least = link_has_routes(flow->link) ? STALL_ROUTES : STALL_ALONE;
  return smaller(larger(8 * rto, least), STALL_MOST);
}

/* Whether the peer has sent on another flow of the link since then. */
static bool peer_sent_since(const struct link_flow *flow, uint64_t when)
{
  const struct net_link *link = flow->link;
  if (atomic_load(&link->closing)) {
    return false; /* flows of other instances may go away */
  }
  for (unsigned i = 0; i < link->flow_count; i++) {
    const struct link_flow *other = link->flows[i];
    if (other && other != flow &&
        atomic_load_explicit(&other->answered, memory_order_relaxed) > when) {
      return true;
    }
  }
  return false;
}

/* Whether a sending flow's connection works. */
enum health {
  HEALTH_GOOD,
  HEALTH_DOUBTFUL, /* half of the time after which it is dead has passed without progress */
  HEALTH_DEAD,
};

static enum health health_of(const struct link_flow *flow, uint64_t now)
{
  struct harp_flow_view view;
  if (!flow->tcp) {
    return HEALTH_DEAD; /* its connection has ended; a new one must take its place */
  }
  harp_flow_view(flow->tcp, &view);
  /* The stack leaves pauses of this process out of its times (tcp_account_pause). Answers may still
   * be unread after a pause, or on their way, so a short time must pass. */
  uint64_t resumed = harp_instance_resumed(flow->instance);
  if (view.unacked == 0 || view.send_window == 0) {
    /* A peer that is only slow to receive answers probes, on a busy host after a while. */
    bool silent = view.probes >= SILENT_PROBES &&
                  now - view.last_receive > bounded(flow, SILENCE_MIN) && now - resumed > STALL_MIN;
    return silent ? HEALTH_DEAD : HEALTH_GOOD;
  }
  uint64_t since = larger(view.last_progress, resumed);
  uint64_t rto = view.rto_us * NS_PER_US;
  uint64_t stuck = now - since;
  uint64_t stall_limit = bounded(flow, larger(4 * rto, STALL_MIN));
  bool alone = now - view.last_progress > bounded(flow, alone_limit(flow, rto));
  if ((alone && stuck > larger(STALL_MIN, 2 * view.min_rtt_us * NS_PER_US)) ||
      (stuck > stall_limit && peer_sent_since(flow, since + stall_limit / 2))) {
    return HEALTH_DEAD;
  }
  return stuck > stall_limit / 2 ? HEALTH_DOUBTFUL : HEALTH_GOOD;
}

bool flow_is_dead(const struct link_flow *flow, uint64_t now)
{
  return health_of(flow, now) == HEALTH_DEAD;
}

/* All outstanding data of a link may be on one doubtful flow. The other flows are idle then, so
 * they probe the peer to show that it is alive. */
static void publish_liveness(struct link_flow *flow, uint64_t now)
{
  struct harp_flow_view view;
  harp_flow_view(flow->tcp, &view);
  atomic_store_explicit(&flow->answered, view.last_receive, memory_order_relaxed);
  uint64_t doubted = atomic_load_explicit(&flow->link->doubted, memory_order_relaxed);
  if (doubted + REPORT_TIME > now && view.unacked == 0) {
    harp_flow_probe(flow->tcp);
  }
}

static void open_candidate(struct link_flow *flow)
{
  struct link_flow *candidate = flow_create(flow->at);
  if (!candidate) {
    return; /* the next tick tries again */
  }
  candidate->replaces = flow;
  candidate->number = flow->number;
  candidate->epoch = ++flow->epoch;
  flow->candidate = candidate;
  flow_trace(flow, HARP_TRACE_fence, flow->epoch, (uint32_t)flow->acked);
  if (flow_write_hello(candidate, flow->link, flow->number) != 0 ||
      flow_connect(candidate, flow->peer) != 0) {
    flow_close_free(candidate, FLOW_CLOSE_RESET);
  }
}

/* Fails the link if the flow's data makes no progress for timeout_ms, over all of its connections.
 * Small frames may pass a path that drops large ones: then every new connection opens, and none
 * carries data. Ticks are counted, so that pauses of this process do not count. */
static void watch_progress(struct link_flow *flow)
{
  struct harp_flow_view view = {0};
  if (flow->tcp) {
    harp_flow_view(flow->tcp, &view);
  }
  bool waits = flow->tcp && view.send_window == 0; /* the peer answers window probes */
  if (waits || flow->acked != flow->idle_acked || atomic_load(&flow->held) == 0) {
    flow->idle_acked = flow->acked;
    flow->idle_ticks = 0;
    flow->reopened = 0;
    return;
  }
  unsigned timeout_ms = flow_config(flow)->timeout_ms;
  if (++flow->idle_ticks * (HARP_TICK_NS / 1000000) <= timeout_ms || flow->epoch < EPOCHS_LEAST) {
    return;
  }
  if (flow->reopened == 0) {
    link_fail(flow->link, -ETIMEDOUT,
              "flow %u: no data was acknowledged within timeout_ms (%u), and no new connection "
              "opened: is the peer's process stopped, or does the network drop frames in one "
              "direction? Look at switches and firewalls between the hosts",
              flow->number, timeout_ms);
  } else {
    link_fail(flow->link, -ETIMEDOUT,
              "flow %u: %u new connections opened, and none carried data within timeout_ms (%u): "
              "the path passes small frames only; compare the MTUs of hosts and switches, or set "
              "`mtu`",
              flow->number, flow->reopened, timeout_ms);
  }
}

void flow_watch(struct link_flow *flow, uint64_t now)
{
  struct net_link *link = flow->link;
  if (!link || !link->sends || flow->state != FLOW_OPEN || link_ended(link)) {
    return;
  }
  watch_progress(flow);
  enum health health = health_of(flow, now);
  bool dead = health == HEALTH_DEAD;
  if (health == HEALTH_DOUBTFUL) {
    atomic_store_explicit(&link->doubted, now, memory_order_relaxed);
  }
  if (flow->tcp) {
    publish_liveness(flow, now);
    flow_sched_tick(flow);
  }
  if (flow_watch_route(flow, dead, now)) {
    return;
  }
  struct link_flow *candidate = flow->candidate;
  if (!candidate) {
    if (dead) {
      open_candidate(flow);
    }
    return;
  }
  /* The receiver may have dropped the old connection once the hello is sent. The sender cannot
   * return to it, so the candidate gets all of timeout_ms. */
  uint64_t time = candidate->state == FLOW_OPENING ? PORT_TIME
                                                   : flow_config(flow)->timeout_ms * NS_PER_MS;
  bool recovered = candidate->state == FLOW_OPENING && !dead;
  if (recovered || harp_instance_running_time(flow->instance) - candidate->born > time) {
    flow_close_free(candidate, FLOW_CLOSE_RESET);
    if (!flow->tcp) {
      link_fail(link, -ETIMEDOUT,
                "flow %u: its connection was reset, and the peer does not answer a new "
                "one: is the host up, and does a firewall let TCP through?",
                flow->number);
    }
  }
}

uint64_t flow_replace_connection(struct link_flow *old, struct link_flow *candidate)
{
  struct harp_flow_view view = {0};
  uint16_t port = old->local_port;
  if (old->tcp) {
    harp_flow_view(old->tcp, &view);
    harp_flow_replace(candidate->tcp, old->tcp);
  }
  flow_move_connection(old, candidate);
  old->local_port = candidate->local_port;
  candidate->local_port = port; /* released with the candidate */
  old->handshake_left = 0;
  flow_free(candidate);
  return view.bytes_in;
}

void flow_continue_sending(struct link_flow *flow, const struct welcome *welcome)
{
  uint64_t missed = welcome->received - flow->acked;
  uint64_t held = atomic_load_explicit(&flow->held, memory_order_relaxed);
  flow->state = FLOW_OPEN;
  flow->connected_epoch = flow->epoch;
  if (missed > held) {
    link_fail(flow->link, -EPROTO,
              "flow %u: the peer claims to have received %llu more bytes, but only %llu are "
              "unacknowledged: do both hosts run the same HARP?",
              flow->number, (unsigned long long)missed, (unsigned long long)held);
    return;
  }
  flow_count_acked(flow, missed); /* bytes that arrived, but whose acknowledgement was lost */
  if (!flow_push_again(flow)) {
    link_fail(flow->link, -ENOBUFS,
              "flow %u: no memory to send the data of its old connection again; lower `flows`, or "
              "raise `instances`",
              flow->number);
    return;
  }
  flow_reopen(flow);
  flow->reopened++;
  harp_instance_count(flow->instance, HARP_COUNTER_flows_replaced, 1);
}

void flow_candidate_welcomed(struct link_flow *candidate, const struct welcome *welcome)
{
  struct link_flow *flow = candidate->replaces;
  flow_replace_connection(flow, candidate);
  flow_continue_sending(flow, welcome);
  if (!link_ended(flow->link)) {
    harp_log_post(HARP_LOG_INFO,
                  "HARP: flow %u to %s made no progress and got a new connection over %.100s "
                  "(number %u); a path there loses packets silently",
                  flow->number, flow->link->peer_name, flow->at->nic->engine->config.device,
                  flow->epoch);
  }
}
