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
#include "harp/time_units.h"
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
  if (flow->proof.challenged || flow->handshake_left > 0) {
    link_fail(link, -EPROTO,
              "the peer sent an unexpected challenge: do both hosts run the same HARP?");
    return;
  }
  flow->proof.challenged = true;
  memcpy(flow->proof.hello, flow->handshake_out, HELLO_SIZE);
  memcpy(flow->proof.challenge, flow->rx_header, WELCOME_SIZE);
  memset(flow->handshake_out + HELLO_PROOF, 0, PROOF_SIZE);
  proof_make(key, PROOF_CONNECTOR, &flow->proof, flow->handshake_out, HELLO_SIZE,
             flow->handshake_out + HELLO_PROOF);
  flow_send_handshake(flow, HELLO_SIZE);
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
  proof_make(key, PROOF_ACCEPTOR, &flow->proof, flow->rx_header,
             welcome_has_nics(welcome) ? HANDSHAKE_SIZE : WELCOME_SIZE, proof);
  return flow->proof.challenged && proof_same(proof, welcome->proof);
}

/* The sending link of a flow's own connection, or of a connection that is to replace or move one of
 * its flows. NULL: the link was closed. */
static struct net_link *link_of(const struct link_flow *flow)
{
  if (flow->replaces) {
    return flow->replaces->link;
  }
  return flow->move ? flow->move->link : flow->link;
}

/* Whether the peer's bytes answer the hello in HARP's wire protocol. Fails the link if not. */
static bool answers_hello(struct link_flow *flow, struct net_link *link, struct welcome *welcome)
{
  if (flow->handshake_left > 0) {
    /* A peer cannot answer a hello that it has not received. And the stack may still send the
     * unacknowledged hello again from this flow's memory, so the flow must not be freed. */
    link_fail(link, -EPROTO,
              "the peer answers the hello before it acknowledges it: do both hosts run the "
              "same HARP?");
    return false;
  }
  if (!welcome_read(welcome, flow->rx_header)) {
    link_fail(link, -EPROTO,
              "the program that answers is not HARP: does another program use the peer's port?");
    return false;
  }
  return true;
}

/* Whether the peer accepts the hello, and proves the shared key if there is one. Fails the link if
 * not. The peer may also ask for this host's proof: the hello then goes out again. */
static bool hello_accepted(struct link_flow *flow, struct net_link *link,
                           const struct welcome *welcome)
{
  if (welcome->status == WELCOME_CHALLENGE) {
    answer_challenge(flow, link);
    return false;
  }
  if (welcome->status == EACCES) {
    link_fail(link, -EACCES, "the peer has a different key: " SAME_KEY);
    return false;
  }
  if (welcome->status || welcome->link != link->id || welcome->flow != flow->number) {
    link_fail(link, -EPROTO, "the peer refused flow %u (%s): do both hosts run the same HARP?",
              flow->number, strerror(welcome->status));
    return false;
  }
  if (!peer_proved(flow, welcome)) {
    link_fail(link, -EACCES, "the peer does not prove that it has the key: " SAME_KEY);
    return false;
  }
  return true;
}

/* The first connection of a flow is welcome: takes what the peer says of itself. Opens the flow. */
static void open_welcomed(struct link_flow *flow, struct net_link *link,
                          const struct welcome *welcome)
{
  link->peer_mtu = welcome->mtu;
  if (flow->number == 0 && welcome_has_nics(welcome)) {
    nic_list_read(&link->peer_nics, flow->rx_header + WELCOME_SIZE);
    atomic_store(&link->peer_nics_known, true);
  }
  flow->checked = flow->transport->checksum && welcome->version >= WIRE_VERSION_CHECKED;
  flow_open(flow);
}

bool connector_input(struct link_flow *flow)
{
  struct welcome welcome;
  struct net_link *link = link_of(flow);
  if (!link) {
    return true; /* its link was closed with FIN, and so is this connection */
  }
  if (!answers_hello(flow, link, &welcome) || !hello_accepted(flow, link, &welcome)) {
    return true;
  }
  if (flow->replaces) {
    flow_candidate_welcomed(flow, &welcome);
    return false;
  }
  if (!flow->move) {
    open_welcomed(flow, link, &welcome);
  } else if (!flow_move_welcomed(flow, &welcome)) {
    link_fail(link, -EPROTO, "the peer answers a hello twice: do both hosts run the same HARP?");
  }
  return true;
}

/* Fails a link for which NCCL no longer calls connect. NCCL may pause for long, but it never calls
 * again for an aborted communicator, and it cannot close a link that connect has not returned. The
 * peer would wait for ever. now: ns, running time. */
static void watch_caller(struct net_link *link, uint64_t now)
{
  uint64_t timeout = link_config(link)->timeout_ms * NS_PER_MS;
  uint64_t bound = timeout * ABANDONED_TIMEOUTS;
  if (atomic_exchange(&link->called, false)) {
    link->called_at = now;
  } else if (now - link->called_at > (bound > ABANDONED_LEAST ? bound : ABANDONED_LEAST)) {
    link_fail(link, -ECANCELED,
              "connect was not called again: NCCL has given up this communicator");
    int pending = CONNECT_PENDING;
    atomic_compare_exchange_strong(&link->connect, &pending, CONNECT_ABANDONED);
  }
}

void link_watch_opening(struct link_flow *flow)
{
  struct net_link *link = flow->link;
  if (!link) {
    return;
  }
  uint64_t now = harp_instance_running_time(flow->instance);
  uint64_t timeout = link_config(link)->timeout_ms * NS_PER_MS;
  unsigned open = atomic_load(&link->flows_open);
  /* The other flows of a spread link begin at a later call of connect, which may come late. */
  unsigned begun = link->sends ? atomic_load(&link->flows_begun) : link->flow_count;
  timeout *= link->striped && !link->sends ? ABANDONED_TIMEOUTS : 1;
  bool awaited = !link->sends || flow->state != FLOW_OPEN; /* an open flow may be much older */
  if (open < begun && awaited && now - flow->born > timeout) {
    link_fail(link, -ETIMEDOUT,
              "%u of %u flows are open after timeout_ms (%u): is the peer's process "
              "alive and running, and does a firewall let TCP through?",
              open, link->flow_count, link_config(link)->timeout_ms);
  }
  if (flow->number == 0 && atomic_load(&link->connect) != CONNECT_NONE) {
    watch_caller(link, now);
  }
}

struct opening {
  struct net_link *link;
  struct nic_instance *at;
  struct harp_endpoint peer;
  uint16_t number;
  uint16_t local_port; /* 0: the flow has it */
  int result;
};

static void open_flow(struct harp_instance *instance, void *argument)
{
  struct opening *opening = argument;
  struct net_link *link = opening->link;
  struct link_flow *flow = flow_create(opening->at);
  if (!flow) {
    opening->result = -ENOMEM;
    return;
  }
  flow_set_link(flow, link, opening->number);
  flow->preferred = (struct flow_route){opening->at, opening->peer};
  opening->result = flow_write_hello(flow, link, opening->number);
  if (opening->result == 0) {
    flow->local_port = opening->local_port;
    opening->local_port = 0;
    opening->result = flow_connect(flow, opening->peer);
  }
  if (opening->result != 0) {
    flow_reset(flow); /* freed with its link: other instances may read it */
  }
}

/* --- The service thread --- */

/* The route on which a flow is opened. Flow 0 is open if the link is spread over NICs. */
static struct flow_route route_of(const struct net_link *link, uint16_t number)
{
  struct flow_route plain = {
      .at = &link->nic->parts[number % nic_instances(link->nic)],
      .peer = {link->peer.address, link->handle.ports[number % link->handle.instances]},
  };
  bool spread = number > 0 && link->striped && link_peer_nics(link)->count > 1;
  return spread ? flow_stripe(link->flows[0], number) : plain;
}

/* Reserves a local port here, because an agent of the node may let the thread wait for seconds. The
 * instance must not wait meanwhile: it serves all other links. */
static int open_one(struct opening *opening)
{
  struct harp_engine *engine = opening->at->nic->engine;
  unsigned queue = harp_instance_number(opening->at->instance);
  int result = harp_engine_reserve(engine, queue, 0, &opening->local_port);
  if (result != 0) {
    return result;
  }
  result = harp_instance_call(opening->at->instance, open_flow, opening, HARP_INSTANCE_CALL_MS);
  if (opening->local_port) {
    harp_engine_release(engine, queue, opening->local_port);
  }
  return result ? result : opening->result;
}

/* Opens the flows up to a number. */
static int open_flows(struct net_link *link, uint16_t end)
{
  for (uint16_t i = link->flows_begun; i < end; i++) {
    struct flow_route route = route_of(link, i);
    struct opening opening = {.link = link, .at = route.at, .peer = route.peer, .number = i};
    link->flows_begun = i + 1;
    int result = open_one(&opening);
    if (result != 0) {
      harp_log_post(HARP_LOG_WARN, "HARP: cannot open flow %u to %s over %.100s: %s; %s", i,
                    link->peer_name, route.at->nic->engine->config.device, strerror(-result),
                    result == -ENETUNREACH
                        ? "no NIC of this process reaches that address: give one an address in "
                          "its subnet, or a gateway"
                        : nic_port_remedy(result));
      return result;
    }
  }
  return 0;
}

/* The number of flows of a new link; *striped: it is spread over the NICs of the process, which all
 * start now. Then each NIC has at least one flow. */
static uint16_t count_flows(struct transport *transport, const struct transport_nic *nic,
                            bool *striped)
{
  const struct harp_config *config = &nic->engine->config;
  unsigned flows = config->flows, driven = 0;
  *striped = nic_stripes(nic);
  if (*striped) {
    transport_start_nics(transport);
    for (const struct transport_nic *one = nic_next(transport, NULL); one;
         one = nic_next(transport, one)) {
      driven++;
    }
  }
  flows = flows > driven ? flows : driven;
  return (uint16_t)(flows < LINK_FLOWS ? flows : LINK_FLOWS);
}

static int begin_link(struct transport *transport, unsigned device, uint8_t *bytes,
                      struct net_link **out)
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
  struct transport_nic *nic = nic_for_connect(transport, device, handle.device, handle.address);
  uint64_t id;
  if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) {
    return -EIO;
  }
  id |= 1; /* zero in a handle's scratch means: no attempt yet */
  bool striped;
  uint16_t flows = count_flows(transport, nic, &striped);
  struct harp_endpoint peer = {handle.address, handle.ports[0]};
  struct net_link *link = link_create(nic, true, id, peer, flows);
  if (!link) {
    return -ENOMEM;
  }
  atomic_store(&link->connect, CONNECT_PENDING);
  atomic_store(&link->called, true);
  link->calls = 1;
  link->handle = handle;
  link->striped = striped;
  link->peer_kernel_address = handle.flags & HANDLE_KERNEL_ADDRESS;
  result = open_flows(link, striped ? 1 : flows);
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
  while (link && (atomic_load(&link->connect) == CONNECT_NONE || link->id != id)) {
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
  uint16_t own = link->nic->engine->port->info.mtu;
  if (link->peer_mtu && link->peer_mtu != own &&
      !atomic_exchange(&link->transport->warned_of_mtu, true)) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: the MTU of %.100s is %u, at %s it is %u: segments are cut to the smaller "
                  "one; set both NICs to the same MTU for full speed",
                  link->nic->engine->config.device, own, link->peer_name, link->peer_mtu);
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
    if (atomic_load(&link->connect) == CONNECT_ABANDONED && link->calls == 0) {
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

/* Opens the other flows of a link that is spread over NICs, once the welcome of flow 0 has listed
 * the peer's. */
static int open_others(struct net_link *link)
{
  bool ready = link->flows_begun < link->flow_count && atomic_load(&link->flows_open) > 0 &&
               !link_ended(link);
  return ready ? open_flows(link, link->flow_count) : 0;
}

int net_connect(int device, void *handle, struct net_link **out)
{
  int error;
  struct transport *transport = transport_get(&error);
  *out = NULL;
  if (!transport || !device_exists(transport, device)) {
    return transport ? -EINVAL : error;
  }
  /* Unknown scratch is no error: begin_link() then checks the handle. */
  uint64_t id = handle_scratch(handle);
  struct net_link *link = id ? find_attempt(transport, id) : NULL;
  reap_abandoned(transport);
  int result = link ? 0 : begin_link(transport, (unsigned)device, handle, &link);
  if (result == 0) {
    link_progress(link);
    int opened = open_others(link);
    error = link_error(link);
    /* A link that the peer has closed is returned: NCCL learns it from its next request. */
    result = opened ? opened : error == -ESHUTDOWN ? 0 : error;
    if (result != 0) {
      transport_remove_link(transport, link);
      link_destroy(link);
    } else if (link_was_open(link)) {
      atomic_store(&link->connect, CONNECT_NONE);
      warn_of_mtu(link);
      *out = link;
    } else {
      leave_attempt(link);
    }
  }
  transport_serve();
  return result;
}
