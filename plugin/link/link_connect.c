/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outgoing links. The first call of connect starts all flows, one after the other; NCCL calls
 * connect again until all have received a welcome. The peer need not call accept for that. The
 * timeout applies to the flows, not to the caller: connect returns a link that has opened in time
 * no matter how late NCCL calls it again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "plugin/link/link.h"

/* NCCL has abandoned a link if it does not call connect for 4 * timeout_ms, but at least 5 s. */
enum { ABANDONED_TIMEOUTS = 4 };
#define ABANDONED_LEAST 5000000000ull /* ns */

/* --- Under the flow's poll lock --- */

#define SAME_KEY "HARP_KEY_FILE must name the same key on every host of the job"

/* The peer requires a proof that we have the key. Sends the hello again, with the proof. */
static void answer_challenge(struct link_flow *flow, struct net_link *link)
{
  const struct proof_key *key = &flow->transport->key;
  if (!key->set) {
    link_fail(link, -EACCES, "the peer requires a key, and this host has none: " SAME_KEY);
    return;
  }
  if (flow->proof.challenged || flow->greeting_left > 0) {
    link_fail(link, -EPROTO,
              "the peer sent an unexpected challenge: do both hosts run the same HARP?");
    return;
  }
  flow->proof.challenged = true;
  memcpy(flow->proof.hello, flow->greeting, HELLO_SIZE);
  memcpy(flow->proof.challenge, flow->rx_header, WELCOME_SIZE);
  memset(flow->greeting + HELLO_PROOF, 0, PROOF_SIZE);
  proof_make(key, PROOF_CONNECTOR, &flow->proof, flow->greeting, HELLO_SIZE,
             flow->greeting + HELLO_PROOF);
  flow_start_hello(flow, HELLO_SIZE);
}

/* Whether the welcome in flow->rx_header proves that the peer has the key; true without a key. */
static bool peer_proved(struct link_flow *flow, const struct welcome *welcome)
{
  const struct proof_key *key = &flow->transport->key;
  uint8_t proof[PROOF_SIZE];
  if (!key->set) {
    return true;
  }
  memset(flow->rx_header + WELCOME_PROOF, 0, PROOF_SIZE);
  proof_make(key, PROOF_ACCEPTOR, &flow->proof, flow->rx_header, WELCOME_SIZE, proof);
  return flow->proof.challenged && proof_same(proof, welcome->proof);
}

bool connector_input(struct link_flow *flow)
{
  struct welcome welcome;
  struct net_link *link = flow->replaces ? flow->replaces->link : flow->link;
  if (!link) {
    return true; /* its link was closed gently, and so is this connection */
  }
  if (flow->greeting_left > 0) {
    /* A peer cannot answer a hello that it has not received. And the stack may still send the
     * unacknowledged hello again from this flow's memory, so the flow must not be freed. */
    link_fail(link, -EPROTO,
              "the peer answers the hello before it acknowledges it: do both hosts run the "
              "same HARP?");
    return true;
  }
  if (!welcome_read(&welcome, flow->rx_header)) {
    link_fail(link, -EPROTO,
              "the program that answers is not HARP: does another program use the peer's port?");
    return true;
  }
  if (welcome.status == WELCOME_CHALLENGE) {
    answer_challenge(flow, link);
    return true;
  }
  if (welcome.status == EACCES) {
    link_fail(link, -EACCES, "the peer has a different key: " SAME_KEY);
    return true;
  }
  if (welcome.status || welcome.link != link->id || welcome.flow != flow->number) {
    link_fail(link, -EPROTO, "the peer refused flow %u (%s): do both hosts run the same HARP?",
              flow->number, strerror(welcome.status));
    return true;
  }
  if (!peer_proved(flow, &welcome)) {
    link_fail(link, -EACCES, "the peer does not prove that it has the key: " SAME_KEY);
    return true;
  }
  if (flow->replaces) {
    flow_candidate_welcomed(flow, &welcome);
    return false;
  }
  link->peer_mtu = welcome.mtu;
  flow->checked = flow->transport->checksum && welcome.version >= WIRE_VERSION_CHECKED;
  flow_open(flow);
  return true;
}

/* Fails a link for which NCCL no longer calls connect. NCCL may pause for long, but it never calls
 * again for an aborted communicator, and it cannot close a link that connect has not returned. The
 * peer would wait for ever. now: ns, running time. */
static void watch_caller(struct net_link *link, uint64_t now)
{
  uint64_t timeout = link->transport->engine->config.timeout_ms * 1000000ull;
  uint64_t bound = timeout * ABANDONED_TIMEOUTS;
  if (atomic_exchange(&link->called, false)) {
    link->called_at = now;
  } else if (now - link->called_at > (bound > ABANDONED_LEAST ? bound : ABANDONED_LEAST)) {
    link_fail(link, -ECANCELED,
              "connect was not called again: NCCL has given up this communicator");
    atomic_store(&link->abandoned, true);
  }
}

void link_watch_opening(struct link_flow *flow)
{
  struct net_link *link = flow->link;
  if (!link) {
    return;
  }
  uint64_t now = harp_instance_running_time(flow->instance);
  uint64_t timeout = link->transport->engine->config.timeout_ms * 1000000ull;
  unsigned open = atomic_load(&link->flows_open);
  if (open < link->flow_count && now - flow->born > timeout) {
    link_fail(link, -ETIMEDOUT,
              "%u of %u flows are open after timeout_ms: is the peer's process "
              "alive and running, and does a firewall let TCP through?",
              open, link->flow_count);
  }
  if (flow->number == 0 && atomic_load(&link->connecting)) {
    watch_caller(link, now);
  }
}

struct opening {
  struct net_link *link;
  uint16_t number;
  int result;
};

static void open_flow(struct harp_instance *instance, void *argument)
{
  struct opening *opening = argument;
  struct net_link *link = opening->link;
  struct link_flow *flow = flow_create(link->transport, instance);
  if (!flow) {
    opening->result = -ENOMEM;
    return;
  }
  flow_set_link(flow, link, opening->number);
  opening->result = flow_write_hello(flow, link, opening->number);
  if (opening->result == 0) {
    opening->result = flow_connect(flow, link);
  }
  if (opening->result != 0) {
    flow_kill(flow); /* freed with its link: other instances may read it */
  }
}

/* --- The service thread --- */

static int open_flows(struct net_link *link)
{
  for (uint16_t i = 0; i < link->flow_count; i++) {
    struct opening opening = {.link = link, .number = i};
    struct harp_instance *instance = link->parts[i % link->part_count].instance;
    int called = harp_instance_call(instance, open_flow, &opening, LINK_CLOSE_MS);
    int result = called ? called : opening.result;
    if (result != 0) {
      harp_log_post(HARP_LOG_WARN,
                    "HARP: cannot open flow %u to %s: %s; free local ports or "
                    "memory, or widen `tcp_ports`",
                    i, link->peer_name, strerror(-result));
      return result;
    }
  }
  return 0;
}

static int begin(struct transport *transport, uint8_t *bytes, struct net_link **out)
{
  struct handle handle;
  char why[200];
  int result = handle_read(&handle, bytes, why, sizeof why);
  if (result != 0) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: connect: %s. Both hosts need the same libnccl-net.so and "
                  "a ztcp*.conf; HARP_DISABLE=1 on both turns HARP off.",
                  why);
    return result;
  }
  const struct harp_config *config = &transport->engine->config;
  uint64_t id;
  if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) {
    return -EIO;
  }
  id |= 1; /* zero in a handle's scratch means: no attempt yet */
  uint32_t flows = config->flows;
  struct harp_endpoint peer = {handle.address, handle.ports[0]};
  struct net_link *link = link_create(transport, true, id, peer,
                                      (uint16_t)(flows < LINK_FLOWS ? flows : LINK_FLOWS));
  if (!link) {
    return -ENOMEM;
  }
  atomic_store(&link->connecting, true);
  atomic_store(&link->called, true);
  link->calls = 1;
  link->handle = handle;
  link->peer_kernel_address = handle.flags & HANDLE_KERNEL_ADDRESS;
  result = open_flows(link);
  if (result != 0) {
    link_destroy(link);
    return result;
  }
  transport_add_link(transport, link);
  handle_set_scratch(bytes, id);
  *out = link;
  return 0;
}

/* The link that a handle's scratch names, NULL if there is none. The id is untrusted, so it is only
 * compared. */
static struct net_link *find_attempt(struct transport *transport, uint64_t id)
{
  pthread_mutex_lock(&transport->lock);
  struct net_link *link = transport->links;
  while (link && (!atomic_load(&link->connecting) || link->id != id)) {
    link = link->next;
  }
  if (link) {
    atomic_store(&link->called, true);
    link->calls++;
  }
  pthread_mutex_unlock(&transport->lock);
  return link;
}

static void warn_of_mtu(struct net_link *link)
{
  uint16_t own = link->transport->engine->port->info.mtu;
  if (link->peer_mtu && link->peer_mtu != own &&
      !atomic_exchange(&link->transport->warned_of_mtu, true)) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: the MTU here is %u, at %s it is %u: segments are cut to "
                  "the smaller one; set both NICs to the same MTU for full speed",
                  own, link->peer_name, link->peer_mtu);
  }
}

/* This call of connect ends; another one may follow. */
static void leave_attempt(struct net_link *link)
{
  pthread_mutex_lock(&link->transport->lock);
  link->calls--;
  pthread_mutex_unlock(&link->transport->lock);
}

/* Frees links for which NCCL no longer calls connect, as after an abort. They hold local ports and
 * memory. */
static void reap_abandoned(struct transport *transport)
{
  struct net_link *reaped = NULL;
  pthread_mutex_lock(&transport->lock);
  struct net_link **at = &transport->links;
  while (*at) {
    struct net_link *link = *at;
    if (atomic_load(&link->abandoned) && link->calls == 0) {
      *at = link->next;
      link->next = reaped;
      reaped = link;
    } else {
      at = &link->next;
    }
  }
  pthread_mutex_unlock(&transport->lock);
  while (reaped) {
    struct net_link *next = reaped->next;
    link_destroy(reaped);
    reaped = next;
  }
}

int net_connect(int device, void *handle, struct net_link **out)
{
  int error;
  struct transport *transport = transport_get(&error);
  *out = NULL;
  if (!transport || device != 0) {
    return transport ? -EINVAL : error;
  }
  /* Unknown scratch is no error: begin() then checks the handle. */
  uint64_t id = handle_scratch(handle);
  struct net_link *link = id ? find_attempt(transport, id) : NULL;
  reap_abandoned(transport);
  int result = link ? 0 : begin(transport, handle, &link);
  if (result == 0) {
    link_progress(link);
    error = atomic_load(&link->error);
    result = error == -ESHUTDOWN ? 0 : error;
    if (result != 0) {
      transport_remove_link(transport, link);
      link_destroy(link);
    } else if (atomic_load(&link->flows_open) == link->flow_count) {
      atomic_store(&link->connecting, false);
      warn_of_mtu(link);
      *out = link;
    } else {
      leave_attempt(link);
    }
  }
  transport_drain_log();
  return result;
}
