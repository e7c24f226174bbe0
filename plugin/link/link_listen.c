/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners and incoming links. A connecting peer is unauthenticated until its hello presents the
 * listener's token. The number and lifetime of unauthenticated peers are limited, and rejected ones
 * are counted but not logged.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "plugin/link/link.h"

enum {
  BACKLOG = 256, /* TCP handshakes in progress, per listener */
  /* Unauthenticated peers of all listeners of an instance together. The limit leaves enough
   * connections for the instance's links. */
  UNAUTHENTICATED_MAX = 512,
  INCOMING_MAX = 256, /* links of a listener that are not accepted yet */
};

/* --- Under a poll lock --- */

/* length: bytes of the hello that have arrived. */
static void reject(struct link_flow *flow, uint32_t length)
{
  harp_instance_count(flow->instance, HARP_COUNTER_unauthenticated_drops, 1);
  harp_instance_trace(flow->instance, HARP_TRACE_NO_FLOW, HARP_TRACE_unauthenticated, length,
                      harp_flow_peer(flow->tcp).address);
  flow_close_free(flow, FLOW_CLOSE_RESET);
}

static void add_unauthenticated(struct net_listener *listener, struct link_flow *flow)
{
  struct nic_instance *at = flow->at;
  struct link_flow *older = at->unauth_newest;
  flow->listener = listener;
  flow->unauth_older = older;
  *(older ? &older->unauth_newer : &at->unauth_oldest) = flow;
  at->unauth_newest = flow;
  at->unauthenticated++;
}

void listener_remove_unauthenticated(struct link_flow *flow)
{
  struct nic_instance *at = flow->at;
  struct link_flow *older = flow->unauth_older, *newer = flow->unauth_newer;
  *(older ? &older->unauth_newer : &at->unauth_oldest) = newer;
  *(newer ? &newer->unauth_older : &at->unauth_newest) = older;
  flow->listener = NULL;
  at->unauthenticated--;
}

static int on_accept(void *user, struct harp_tcp *tcp)
{
  struct net_listener *listener = user;
  struct nic_instance *at = NULL;
  uint16_t port = harp_flow_local_port(tcp);
  for (unsigned i = 0; i < nic_instances(listener->nic); i++) {
    if (listener->ports[i] == port) {
      at = &listener->nic->parts[i];
    }
  }
  if (!at) {
    return -EPERM;
  }
  /* Many silent connections must not keep a peer out, so the oldest is dropped. */
  if (at->unauthenticated >= UNAUTHENTICATED_MAX) {
    reject(at->unauth_oldest, at->unauth_oldest->rx_header_size);
  }
  struct link_flow *flow = flow_create(at);
  if (!flow) {
    return -ENOMEM;
  }
  add_unauthenticated(listener, flow);
  flow_accept(flow, tcp);
  return 0;
}

static const struct harp_flow_ops listener_ops = {.accept = on_accept};

/* The link that a hello belongs to. The first hello of a link creates it. NULL: too many links
 * wait, or no memory. Under listener->lock. */
static struct net_link *incoming_link(struct net_listener *listener, const struct hello *hello,
                                      struct harp_endpoint peer)
{
  struct net_link **end = &listener->incoming;
  unsigned waiting = 0;
  for (; *end; end = &(*end)->next) {
    if ((*end)->id == hello->link) {
      return *end;
    }
    waiting++;
  }
  if (waiting >= INCOMING_MAX) {
    return NULL;
  }
  struct net_link *link = link_create(listener->nic, false, hello->link, peer, hello->flows);
  if (link) {
    link->peer_mtu = hello->mtu;
    link->peer_kernel_address = hello->flags & HELLO_KERNEL_ADDRESS;
    link->striped = hello->flags & HELLO_STRIPED;
    link->listener = listener;
    atomic_fetch_add(&listener->users, 1);
    *end = link;
    link_receive_on_all(link);
  }
  return link;
}

/* Adds the flow to the link that its hello names. false: the hello does not fit. */
static bool join(struct link_flow *flow, struct net_listener *listener, const struct hello *hello)
{
  pthread_mutex_lock(&listener->lock);
  struct net_link *link = NULL;
  if (!atomic_load(&listener->closed)) { /* again: listener_input did not hold the lock */
    link = incoming_link(listener, hello, harp_flow_peer(flow->tcp));
  }
  bool fits = link && hello->flows == link->flow_count && !link->flows[hello->flow];
  if (fits) {
    flow_set_link(flow, link, hello->flow);
  }
  pthread_mutex_unlock(&listener->lock);
  return fits;
}

/* The welcome for an accepted hello. */
static struct welcome answer_to(const struct link_flow *flow, const struct hello *hello)
{
  return (struct welcome){
      .version = wire_version_common(hello->version_min, hello->version_max),
      .link = hello->link,
      .flow = hello->flow,
      .mtu = harp_instance_port(flow->instance)->mtu,
      .epoch = hello->epoch,
  };
}

/* Our NICs, with the ports on which they accept flows of any link. */
static void list_nics(const struct transport *transport, uint8_t out[NIC_LIST_SIZE])
{
  struct nic_list list = {0};
  for (unsigned i = 0; i < HARP_DEVICES_MAX && list.count < NIC_LIST_ENTRIES; i++) {
    const struct transport_nic *nic = nic_driven(transport, i);
    if (nic && nic->shared_port) {
      list.of[list.count++] = (struct nic_list_entry){
          .at = {nic->engine->port->info.address, nic->shared_port},
          .device = (uint8_t)i,
          .flags = nic_runs(nic) ? NIC_LISTENS : 0,
      };
    }
  }
  nic_list_write(&list, out);
}

static void send_welcome(struct link_flow *flow, const struct welcome *welcome)
{
  const struct proof_key *key = &flow->transport->key;
  uint32_t size = WELCOME_SIZE;
  welcome_write(welcome, flow->handshake_out);
  if (welcome_has_nics(welcome)) {
    list_nics(flow->transport, flow->handshake_out + WELCOME_SIZE);
    size = HANDSHAKE_SIZE;
  }
  if (key->set && welcome->status == 0) {
    proof_make(key, PROOF_ACCEPTOR, &flow->proof, flow->handshake_out, size,
               flow->handshake_out + WELCOME_PROOF);
  }
  flow_send_handshake(flow, size);
}

/* Requests a proof that the peer has the key; false: the flow was freed. */
static bool challenge(struct link_flow *flow, const struct hello *hello)
{
  struct welcome welcome = answer_to(flow, hello);
  welcome.status = WELCOME_CHALLENGE;
  if (proof_challenge(welcome.proof) != 0) {
    reject(flow, HELLO_SIZE);
    return false;
  }
  send_welcome(flow, &welcome);
  flow->proof.challenged = true;
  memcpy(flow->proof.hello, flow->rx_header, HELLO_SIZE);
  memcpy(flow->proof.challenge, flow->handshake_out, WELCOME_SIZE);
  return true;
}

/* Whether the second hello, in flow->rx_header, equals the first one and carries a valid proof. */
static bool proved(struct link_flow *flow, const struct hello *hello)
{
  uint8_t proof[PROOF_SIZE];
  memset(flow->rx_header + HELLO_PROOF, 0, PROOF_SIZE);
  proof_make(&flow->transport->key, PROOF_CONNECTOR, &flow->proof, flow->rx_header, HELLO_SIZE,
             proof);
  return memcmp(flow->proof.hello, flow->rx_header, HELLO_PROOF) == 0 &&
         proof_same(proof, hello->proof);
}

/* Sends a welcome with an errno. The peer logs the reason and closes; otherwise the flow is dropped
 * after its time for a hello. */
static void refuse(struct link_flow *flow, const struct hello *hello, uint16_t status)
{
  struct welcome welcome = answer_to(flow, hello);
  welcome.status = status;
  send_welcome(flow, &welcome);
}

static void refuse_unproved(struct link_flow *flow, const struct hello *hello)
{
  struct harp_endpoint peer = harp_flow_peer(flow->tcp);
  char name[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &peer.address, name, sizeof name);
  harp_instance_count(flow->instance, HARP_COUNTER_keys_refused, 1);
  harp_log_post(HARP_LOG_WARN,
                "HARP: %s knows this job's token but not its key, and was refused: "
                "HARP_KEY_FILE must name the same key on every host of the job",
                name);
  refuse(flow, hello, EACCES);
}

uint32_t flow_hello_bytes(const struct link_flow *flow)
{
  return flow->proof.challenged ? 2 * HELLO_SIZE : HELLO_SIZE;
}

/* Whether a hello may replace the flow's connection. A late hello, with an old epoch, must not
 * replace a newer connection. */
static bool may_replace(const struct link_flow *flow, const struct hello *hello)
{
  return hello->epoch > flow->epoch && flow->state == FLOW_OPEN && flow->tcp;
}

/* Replaces the connection of an open flow by the candidate's, frees the candidate, and sends the
 * welcome. Of the bytes that the old connection has received, the hellos are no chunks and do not
 * count. */
static void continue_flow(struct link_flow *old, struct link_flow *candidate,
                          const struct hello *hello)
{
  uint32_t handshake = flow_hello_bytes(old);
  old->proof = candidate->proof;
  old->received_before += flow_replace_connection(old, candidate) - handshake;
  old->epoch = hello->epoch;
  listener_continue(old, hello);
}

void listener_continue(struct link_flow *flow, const struct hello *hello)
{
  struct welcome welcome = answer_to(flow, hello);
  welcome.received = flow->received_before;
  send_welcome(flow, &welcome);
  flow_reopen(flow);
}

/* A hello with an epoch asks to continue a flow over the candidate's connection. The flow may be
 * on this instance, and gets the connection at once. If it is on another one, or has no connection,
 * a move begins. Any other hello is rejected. false: the candidate was freed. */
static bool replace(struct link_flow *candidate, struct link_instance *part,
                    const struct hello *hello)
{
  struct link_flow *old = part->link->flows[hello->flow];
  if (old && old->part == part && may_replace(old, hello)) {
    continue_flow(old, candidate, hello);
    return false;
  }
  bool elsewhere = old && (old->part != part || !old->tcp);
  if (!elsewhere || !flow_move_in(candidate, part, hello)) {
    reject(candidate, HELLO_SIZE);
    return false;
  }
  return true;
}

/* The shared listener of a NIC has no token of its own: the hello must name a link. */
static bool token_fits(const struct net_listener *listener, const struct hello *hello,
                       const struct link_instance *part)
{
  return listener->shared ? part != NULL : token_same(hello->token, listener->token);
}

bool listener_input(struct link_flow *flow)
{
  struct hello hello;
  struct net_listener *listener = flow->listener;
  bool valid = hello_read(&hello, flow->rx_header);
  struct link_instance *part = valid ? link_named(flow->at, &hello) : NULL;
  if (!valid || !token_fits(listener, &hello, part) || hello.flows > LINK_FLOWS ||
      flow->handshake_left > 0) {
    reject(flow, HELLO_SIZE);
    return false;
  }
  if (flow->transport->key.set && !flow->proof.challenged) {
    return challenge(flow, &hello);
  }
  if (flow->transport->key.set && !proved(flow, &hello)) {
    refuse_unproved(flow, &hello);
    return true;
  }
  if (part && hello.epoch > 0) {
    return replace(flow, part, &hello);
  }
  listener = part ? part->link->listener : listener;
  bool taken = part && part->link->flows[hello.flow];
  if (taken || atomic_load(&listener->closed) || hello.epoch > 0) {
    reject(flow, HELLO_SIZE);
    return false;
  }
  struct welcome welcome = answer_to(flow, &hello);
  if (welcome.version == 0) {
    refuse(flow, &hello, EPROTONOSUPPORT);
    return true;
  }
  if (!join(flow, listener, &hello)) {
    reject(flow, HELLO_SIZE);
    return false;
  }
  flow->checked = welcome.version >= WIRE_VERSION_CHECKED && hello.flags & HELLO_CHECKED;
  send_welcome(flow, &welcome);
  listener_remove_unauthenticated(flow);
  flow_open(flow);
  return true;
}

/* --- The service thread --- */

struct listening {
  struct net_listener *listener;
  int result;
};

static void start_listening(struct harp_instance *instance, void *argument)
{
  struct listening *listening = argument;
  struct net_listener *listener = listening->listener;
  unsigned i = harp_instance_number(instance);
  listening->result = harp_flow_listen(harp_instance_stack(instance), listener->ports[i], BACKLOG,
                                       &listener_ops, listener, &listener->stack_listeners[i]);
}

static void stop_listening(struct harp_instance *instance, void *argument)
{
  struct listening *listening = argument;
  struct net_listener *listener = listening->listener;
  unsigned i = harp_instance_number(instance);
  if (listener->stack_listeners[i]) {
    harp_flow_unlisten(listener->stack_listeners[i]);
    listener->stack_listeners[i] = NULL;
  }
  struct link_flow *next;
  for (struct link_flow *flow = listener->nic->parts[i].flows; flow; flow = next) {
    next = flow->next;
    if (flow->listener == listener) {
      flow_close_free(flow, FLOW_CLOSE_RESET);
    }
  }
}

static void destroy(struct net_listener *listener)
{
  struct harp_engine *engine = listener->nic->engine;
  bool held = false;
  for (unsigned i = 0; i < engine->instance_count; i++) {
    struct listening listening = {listener, 0};
    held |= harp_instance_call(engine->instances[i], stop_listening, &listening,
                               HARP_INSTANCE_CALL_MS) != 0;
    if (listener->ports[i]) {
      harp_engine_release(engine, i, listener->ports[i]);
    }
  }
  if (!held) {
    pthread_mutex_destroy(&listener->lock);
    free(listener);
  }
}

void listener_put(struct net_listener *listener)
{
  if (atomic_fetch_sub(&listener->users, 1) == 1) {
    destroy(listener);
  }
}

/* Reserves all ports before the first instance listens, because on_accept reads the ports of all
 * instances. */
static int open_instances(struct net_listener *listener)
{
  struct harp_engine *engine = listener->nic->engine;
  int result = 0;
  for (unsigned i = 0; i < engine->instance_count && result == 0; i++) {
    result = harp_engine_reserve(engine, i, 0, &listener->ports[i]);
  }
  for (unsigned i = 0; i < engine->instance_count && result == 0; i++) {
    struct listening listening = {listener, 0};
    result = harp_instance_call(engine->instances[i], start_listening, &listening,
                                HARP_INSTANCE_CALL_MS);
    result = result ? result : listening.result;
  }
  return result;
}

static void write_handle(const struct net_listener *listener, void *out)
{
  const struct harp_engine *engine = listener->nic->engine;
  struct handle handle = {
      .version_min = WIRE_VERSION_MIN,
      .version_max = WIRE_VERSION_MAX,
      .address = engine->port->info.address,
      .instances = (uint8_t)engine->instance_count,
      .flags = engine->port->info.shares_address ? HANDLE_KERNEL_ADDRESS : 0,
      .mtu = engine->port->info.mtu,
      .device = listener->nic->device,
  };
  _Static_assert(sizeof handle.ports == sizeof listener->ports, "a port of each instance");
  memcpy(handle.ports, listener->ports, sizeof handle.ports);
  memcpy(handle.token, listener->token, TOKEN_SIZE);
  handle_write(&handle, out);
}

static struct net_listener *create(struct transport_nic *nic)
{
  struct net_listener *listener = calloc(1, sizeof *listener);
  if (listener) {
    listener->transport = nic->transport;
    listener->nic = nic;
    atomic_store(&listener->users, 1);
    pthread_mutex_init(&listener->lock, NULL);
  }
  return listener;
}

struct net_listener *listener_open_shared(struct transport_nic *nic)
{
  struct net_listener *listener = create(nic);
  if (!listener) {
    return NULL;
  }
  struct listening listening = {listener, 0};
  listener->shared = true;
  listener->ports[0] = nic->shared_port;
  int called = harp_instance_call(nic->parts[0].instance, start_listening, &listening,
                                  HARP_INSTANCE_CALL_MS);
  if (called != 0 || listening.result != 0) {
    destroy(listener);
    return NULL;
  }
  return listener;
}

int net_listen(int device, void *handle, struct net_listener **out)
{
  int error;
  struct transport *transport = transport_get(&error);
  if (!transport || !device_exists(transport, device)) {
    return transport ? -EINVAL : error;
  }
  struct net_listener *listener = create(nic_for_listen(transport, (unsigned)device));
  if (!listener) {
    return -ENOMEM;
  }
  if (nic_stripes(listener->nic)) {
    transport_start_nics(transport);
  }
  int result = token_draw(listener->token);
  if (result == 0) {
    result = open_instances(listener);
  }
  if (result != 0) {
    harp_log_post(HARP_LOG_WARN, "HARP: cannot listen on %s: %s; %s",
                  listener->nic->engine->config.device, strerror(-result), nic_port_remedy(result));
    destroy(listener);
    transport_serve();
    return result;
  }
  write_handle(listener, handle);
  *out = listener;
  return 0;
}

/* Removes the oldest complete link from the queue and returns it, or NULL. Links that failed before
 * all of their flows were open go to *failed. */
static struct net_link *take_ready(struct net_listener *listener, struct net_link **failed)
{
  struct net_link *ready = NULL;
  pthread_mutex_lock(&listener->lock);
  struct net_link **at = &listener->incoming;
  while (*at) {
    struct net_link *link = *at;
    bool complete = link_was_open(link);
    bool over = !complete && link_ended(link);
    if (over || (complete && !ready)) {
      *at = link->next;
      link->next = over ? *failed : NULL;
      *(over ? failed : &ready) = link;
    } else {
      at = &link->next;
    }
  }
  pthread_mutex_unlock(&listener->lock);
  return ready;
}

int net_accept(struct net_listener *listener, struct net_link **out)
{
  int error;
  *out = NULL;
  if (!transport_get(&error)) {
    return error;
  }
  struct harp_engine *engine = listener->nic->engine;
  for (unsigned i = 0; i < engine->instance_count; i++) {
    harp_instance_progress(engine->instances[i]);
  }
  struct net_link *failed = NULL;
  struct net_link *link = take_ready(listener, &failed);
  while (failed) {
    struct net_link *next = failed->next;
    error = link_error(failed);
    link_destroy(failed);
    failed = next;
  }
  if (link) {
    transport_add_link(listener->transport, link);
  }
  transport_serve();
  *out = link;
  /* The peer of a failed link had the token and does not connect again, so accept must not wait. */
  return link ? 0 : error;
}

/* Accepted links keep the listener, since their flows may need new connections. Links that were not
 * accepted are destroyed. */
int net_close_listener(struct net_listener *listener)
{
  if (transport_forked()) {
    return -EPERM;
  }
  pthread_mutex_lock(&listener->lock);
  atomic_store(&listener->closed, true); /* join reads it under the lock */
  struct net_link *link = listener->incoming;
  listener->incoming = NULL;
  pthread_mutex_unlock(&listener->lock);
  while (link) {
    struct net_link *next = link->next;
    link_destroy(link);
    link = next;
  }
  listener_put(listener);
  transport_serve();
  return 0;
}
