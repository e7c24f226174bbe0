/* SPDX-License-Identifier: Apache-2.0 */
/* Links: requests, failure, and close. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "harp/time_units.h"
#include "plugin/link/link.h"

enum {
  CHUNK_ALONE = 4 << 20,    /* bytes, for a link with one flow */
  CHUNK_SHARED = 128 << 10, /* bytes, for several flows: a slow flow then holds little data */
};

/* --- Posted work, in the poller --- */

static void part_run(struct harp_post *post, struct harp_instance *instance)
{
  struct link_instance *part = (struct link_instance *)post;
  struct net_link *link = part->link;
  if (atomic_load(&link->closing)) {
    return; /* link_detach ends its flows on every instance */
  }
  bool ended = link_ended(link);
  for (unsigned i = 0; i < link->flow_count; i++) {
    struct link_flow *flow = link->flows[i];
    if (!flow || flow->part != part || flow->at != part->at) { /* it is not adopted yet */
      continue;
    }
    if (ended) {
      flow_reset(flow);
    } else if (link->sends && flow->tcp) {
      harp_flow_ready(flow->tcp);
    } else {
      flow_resume(flow);
    }
  }
  if (ended) {
    flow_moves_end(link, part->at, FLOW_CLOSE_RESET);
  }
}

static void post_all(struct net_link *link)
{
  unsigned count = atomic_load_explicit(&link->part_count, memory_order_acquire);
  for (unsigned i = 0; i < count; i++) {
    harp_instance_post(link->parts[i].instance, &link->parts[i].post);
  }
}

/* Changes the state of the link; false: it may not change that way. */
static bool enter_state(struct net_link *link, enum link_state next)
{
  static const unsigned from[] = {
      [LINK_OPEN] = 1u << LINK_OPENING,
      [LINK_FAILING] = 1u << LINK_OPENING | 1u << LINK_OPEN,
      /* connect waits for all flows of an opening link, and fails if they do not open. */
      [LINK_PEER_CLOSED] = 1u << LINK_OPEN,
      [LINK_FAILED] = 1u << LINK_FAILING,
  };
  int state = atomic_load(&link->state);
  bool may;
  do {
    may = from[next] & 1u << state;
  } while (may && !atomic_compare_exchange_weak(&link->state, &state, (int)next));
  return may;
}

void link_flow_opened(struct net_link *link)
{
  if (atomic_fetch_add(&link->flows_open, 1) + 1u == link->flow_count) {
    enter_state(link, LINK_OPEN);
  }
}

/* Ends LINK_FAILING. */
static void set_failed(struct net_link *link, int error)
{
  link->error = error;
  enter_state(link, LINK_FAILED);
}

void link_fail(struct net_link *link, int error, const char *format, ...)
{
  if (!enter_state(link, LINK_FAILING)) {
    return;
  }
  char why[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  bool news = error != -ECONNRESET ||
              aborts_reset_is_news(&link->transport->aborts, link->peer.address, harp_clock_ns());
  harp_log_post(news ? HARP_LOG_WARN : HARP_LOG_INFO, "HARP: the link %s %s failed: %s",
                link->sends ? "to" : "from", link->peer_name, why);
  if (news) {
    transport_request_trace(link->transport, why);
  }
  /* The log line is queued before this, so that a thread that sees the error finds the line. */
  set_failed(link, error);
  harp_instance_count_shared(link->nic->engine->instances[0], HARP_COUNTER_link_errors);
  if (!atomic_load(&link->closing)) {
    post_all(link);
  }
}

void link_peer_closed(struct net_link *link)
{
  if (!link->sends && atomic_load(&link->flows_ended) < link->flow_count) {
    return; /* other flows may hold data for receives that are not posted yet */
  }
  if (link_was_open(link)) {
    enter_state(link, LINK_OPEN); /* the instance that counted the last flow may do it later */
  }
  enter_state(link, LINK_PEER_CLOSED);
}

/* Logs why a request on a closed link fails. Returns error. */
static int refuse(struct net_link *link, int error)
{
  if (error == -ESHUTDOWN) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: the link %s %s failed: the peer has closed it, but this rank posted more "
                  "messages; the peer's process ended, or the ranks disagree on "
                  "the number of messages: see that host's log",
                  link->sends ? "to" : "from", link->peer_name);
  }
  if (error) {
    transport_serve();
  }
  return error;
}

/* --- Life --- */

/* Called with transport->parts_lock. */
static struct link_instance *find_or_add_part(struct net_link *link, struct nic_instance *at)
{
  struct link_instance *part = NULL;
  unsigned count = atomic_load_explicit(&link->part_count, memory_order_relaxed);
  for (unsigned i = 0; i < count && !part; i++) {
    part = link->parts[i].at == at ? &link->parts[i] : NULL;
  }
  if (!part && count < LINK_PARTS) {
    part = &link->parts[count];
    *part = (struct link_instance){
        .post.run = part_run,
        .link = link,
        .at = at,
        .instance = at->instance,
    };
    atomic_store_explicit(&link->part_count, count + 1, memory_order_release);
  }
  return part;
}

struct link_instance *link_part(struct net_link *link, struct nic_instance *at)
{
  pthread_mutex_lock(&link->transport->parts_lock);
  struct link_instance *part = find_or_add_part(link, at);
  pthread_mutex_unlock(&link->transport->parts_lock);
  return part;
}

const struct nic_list *link_peer_nics(const struct net_link *link)
{
  static const struct nic_list none;
  return atomic_load(&link->peer_nics_known) ? &link->peer_nics : &none;
}

void link_receive_on_all(struct net_link *link)
{
  struct transport *transport = link->transport;
  pthread_mutex_lock(&transport->parts_lock);
  link->next_receiving = transport->receiving;
  transport->receiving = link;
  pthread_mutex_unlock(&transport->parts_lock);
}

/* No part is added from now on. */
static void stop_receiving(struct net_link *link)
{
  struct transport *transport = link->transport;
  pthread_mutex_lock(&transport->parts_lock);
  struct net_link **at = &transport->receiving;
  while (*at && *at != link) {
    at = &(*at)->next_receiving;
  }
  if (*at) {
    *at = link->next_receiving;
  }
  pthread_mutex_unlock(&transport->parts_lock);
}

struct link_instance *link_named(struct nic_instance *at, const struct hello *hello)
{
  struct transport *transport = at->nic->transport;
  struct link_instance *part = NULL;
  pthread_mutex_lock(&transport->parts_lock);
  struct net_link *link = transport->receiving;
  while (link && (link->id != hello->link || !token_same(link->listener->token, hello->token))) {
    link = link->next_receiving;
  }
  if (link && hello->flow < link->flow_count) {
    part = find_or_add_part(link, at);
  }
  pthread_mutex_unlock(&transport->parts_lock);
  return part;
}

struct net_link *link_create(struct transport_nic *nic, bool sends, uint64_t id,
                             struct harp_endpoint peer, uint16_t flow_count)
{
  struct net_link *link = aligned_alloc(64, sizeof *link);
  if (!link) {
    return NULL;
  }
  memset(link, 0, sizeof *link);
  link->transport = nic->transport;
  link->nic = nic;
  link->sends = sends;
  link->id = id;
  link->peer = peer;
  link->flow_count = flow_count;
  /* Checksums are computed when a chunk is pulled; small chunks keep that step short. */
  link->chunk_size = flow_count > 1 || nic->transport->checksum ? CHUNK_SHARED : CHUNK_ALONE;
  for (unsigned i = 0; i < nic_instances(nic); i++) {
    link_part(link, &nic->parts[i]);
  }
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &peer.address, address, sizeof address);
  snprintf(link->peer_name, sizeof link->peer_name, "%s:%u", address, peer.port);
  return link;
}

bool link_idle(const struct net_link *link)
{
  for (int i = 0; i < LINK_REQUESTS; i++) {
    if (atomic_load_explicit(&link->requests[i].state, memory_order_acquire) == REQUEST_POSTED) {
      return false;
    }
  }
  return true;
}

struct draining {
  const struct net_link *link;
  bool owes; /* a flow has bytes that are not acknowledged */
};

/* Looks at the flows of all instances, because a flow that moves may belong to none at its call.
 * During the call, the flows of this instance pull no bytes. */
static void find_unacknowledged(struct harp_instance *instance, void *argument)
{
  struct draining *draining = argument;
  for (unsigned i = 0; i < draining->link->flow_count; i++) {
    const struct link_flow *flow = draining->link->flows[i];
    draining->owes |= flow && atomic_load(&flow->held) > 0;
  }
}

/* Whether an acknowledgement is missing that may still come. *silent: no worker answers, which
 * counts as missing. One that answers is enough, because it looks at all flows. */
static bool link_owes(const struct net_link *link, bool *silent)
{
  struct draining draining = {.link = link};
  bool asks = link->sends && !link_ended(link);
  *silent = asks;
  for (unsigned i = 0; i < link->part_count && asks; i++) {
    bool answers = harp_instance_call(link->parts[i].instance, find_unacknowledged, &draining,
                                      HARP_INSTANCE_CALL_MS) == 0;
    *silent &= !answers;
  }
  return draining.owes || *silent;
}

/*
 * Waits until all copies of short messages are acknowledged; false: some are not. A closed flow
 * gets no new connection, so the limit is long enough to notice a dead connection and to replace
 * it. The links of a process share the limit until one of them gets all acknowledgements, because a
 * stopped peer may have many links. The bytes of a live connection may still arrive later.
 */
static bool drain(struct net_link *link)
{
  _Atomic(uint64_t) *spent = &link->transport->drained_in_vain_ns;
  uint64_t before = atomic_load(spent), ran = 0;
  struct harp_run_time waited = {0};
  bool silent, owes = link_owes(link, &silent);
  while (owes && !silent && before + ran < LINK_DRAIN_MS * NS_PER_MS) {
    harp_sleep_us(50);
    ran = harp_ran_ns(&waited);
    owes = link_owes(link, &silent);
  }
  atomic_store(spent, owes ? before + ran : 0);
  return !owes;
}

struct detaching {
  struct net_link *link;
  const struct link_instance *part;
  enum flow_close how, moves; /* moves: the end of connections that have not taken a flow over */
};

static void detach(struct harp_instance *instance, void *argument)
{
  const struct detaching *detaching = argument;
  struct net_link *link = detaching->link;
  for (unsigned i = 0; i < link->flow_count; i++) {
    if (link->flows[i] && link->flows[i]->part == detaching->part) {
      flow_close_free(link->flows[i], detaching->how);
    }
  }
  flow_moves_end(link, detaching->part->at, detaching->moves);
  /* The device may still read frames that refer to the requests' memory. */
  harp_instance_reclaim(instance);
}

bool link_detach(struct net_link *link)
{
  int error = link_error(link);
  bool in_order = link_idle(link) && (error == 0 || error == -ESHUTDOWN);
  bool drained = in_order && drain(link);
  /* A new connection that ends in order could cost the peer the old one, which may still bring what
   * is not acknowledged. */
  struct detaching detaching = {.link = link,
                                .how = in_order ? FLOW_CLOSE_FIN : FLOW_CLOSE_RESET,
                                .moves = drained ? FLOW_CLOSE_FIN : FLOW_CLOSE_RESET};
  bool held = false;
  if (!link_idle(link) && (error == 0 || error == -ECANCELED)) {
    aborts_begin(&link->transport->aborts, harp_clock_ns());
  }
  atomic_store(&link->closing, true);
  stop_receiving(link);
  /* Instances read each other's flows. Each must finish such a read before flows are freed. A move
   * that has released a flow must have posted its last step before `detach` is posted. */
  for (unsigned i = 0; i < link->part_count; i++) {
    held |= harp_instance_barrier(link->parts[i].instance, HARP_INSTANCE_CALL_MS) != 0;
  }
  for (unsigned i = 0; i < link->part_count; i++) {
    detaching.part = &link->parts[i];
    held |= harp_instance_call(link->parts[i].instance, detach, &detaching,
                               HARP_INSTANCE_CALL_MS) != 0;
  }
  /* An instance may have failed the link and posted to the others before it was detached. These
   * calls return after such posts have run. */
  for (unsigned i = 0; i < link->part_count; i++) {
    held |= harp_instance_barrier(link->parts[i].instance, HARP_INSTANCE_CALL_MS) != 0;
  }
  if (held) {
    harp_log_post(HARP_LOG_WARN,
                  "HARP: a worker does not answer and may still use the link with %s; HARP does "
                  "not free the link's memory",
                  link->peer_name);
  }
  return !held;
}

void link_destroy(struct net_link *link)
{
  struct net_listener *listener = link->listener;
  if (link_detach(link)) {
    link_release_regions(link);
    free(link);
    if (listener) {
      listener_put(listener);
    }
  }
}

static bool uses(const struct net_link *link, const struct net_region *region)
{
  for (int i = 0; i < LINK_REQUESTS; i++) {
    const struct net_request *request = &link->requests[i];
    if (atomic_load_explicit(&request->state, memory_order_acquire) == REQUEST_POSTED &&
        request->region == region) {
      return true;
    }
  }
  return false;
}

void link_revoke_region(struct net_link *link, const struct net_region *region)
{
  /* On a failed link, some instance may not have stopped using the posted memory yet. */
  if (!uses(link, region) && !link_ended(link)) {
    return;
  }
  if (enter_state(link, LINK_FAILING)) {
    set_failed(link, -ECANCELED);
  }
  link_detach(link);
}

void link_progress(struct net_link *link)
{
  for (unsigned i = 0; i < link->part_count; i++) {
    harp_instance_progress(link->parts[i].instance);
  }
}

/* --- Requests --- */

/* The slot of the next message; NULL: an older request still uses it. */
static struct net_request *take_slot(struct net_link *link, uint64_t *message)
{
  *message = atomic_load_explicit(&link->posted, memory_order_relaxed);
  struct net_request *request = &link->requests[*message % LINK_REQUESTS];
  bool is_free = atomic_load_explicit(&request->state, memory_order_acquire) == REQUEST_FREE;
  return is_free ? request : NULL;
}

static void publish(struct net_link *link, struct net_request *request, uint64_t message)
{
  request->link = link;
  request->message = message;
  request->posted_ns = harp_clock_ns();
  atomic_store_explicit(&request->state, REQUEST_POSTED, memory_order_release);
  atomic_store(&link->posted, message + 1);
}

/* 0 if a message may be posted on this link in this direction, else a negative errno. */
static int usable(struct net_link *link, bool to_send)
{
  if (transport_forked()) {
    return -EPERM;
  }
  int error = link_error(link);
  return link->sends == to_send ? refuse(link, error) : -EINVAL;
}

int net_isend(struct net_link *link, const void *data, size_t size, struct net_region *region,
              struct net_request **out)
{
  *out = NULL;
  uint64_t message;
  struct net_request *request = take_slot(link, &message);
  int error = usable(link, true);
  if (error || !request) {
    return error;
  }
  request->data = (uint8_t *)(uintptr_t)data;
  request->region = region;
  request->size = size;
  uint64_t chunks = link_chunks(link, size);
  if (chunks > UINT32_MAX) {
    return -EMSGSIZE;
  }
  atomic_store_explicit(&request->left, (int64_t)chunks, memory_order_relaxed);
  atomic_store_explicit(&request->claim, message << 32 | chunks, memory_order_release);
  publish(link, request, message);
  post_all(link);
  *out = request;
  return 0;
}

int net_irecv(struct net_link *link, void *data, size_t capacity, struct net_region *region,
              enum net_completion completion, struct net_request **out)
{
  *out = NULL;
  uint64_t message;
  struct net_request *request = take_slot(link, &message);
  int error = usable(link, false);
  if (error || !request) {
    return error;
  }
  request->data = data;
  request->region = region;
  request->size = capacity;
  request->received = 0;
  request->read_early = early_read_possible(&link->transport->early_read, completion, region);
  atomic_store_explicit(&request->left, 0, memory_order_relaxed);
  atomic_store_explicit(&request->edges, 0, memory_order_relaxed);
  atomic_store_explicit(&request->claim, receive_unclaimed(message), memory_order_release);
  publish(link, request, message);
  if (atomic_load(&link->stalled)) {
    atomic_store(&link->stalled, false);
    post_all(link);
  }
  *out = request;
  return 0;
}

/* Whether the request is done. Its slot is free then. */
static bool take_result(struct net_request *request, int *done, size_t *size)
{
  if (atomic_load_explicit(&request->state, memory_order_acquire) != REQUEST_DONE) {
    return false;
  }
  *done = 1;
  if (size) {
    *size = request->link->sends ? request->size : request->received;
  }
  atomic_store_explicit(&request->state, REQUEST_FREE, memory_order_release);
  return true;
}

int net_test(struct net_request *request, int *done, size_t *size)
{
  struct net_link *link = request->link;
  *done = 0;
  if (transport_forked()) {
    return -EPERM;
  }
  if (take_result(request, done, size)) {
    return 0;
  }
  link_progress(link);
  transport_serve();
  if (take_result(request, done, size)) {
    return 0;
  }
  int error = link_error(link);
  if (error) {
    atomic_store_explicit(&request->state, REQUEST_FREE, memory_order_release);
  }
  return refuse(link, error);
}

int net_close(struct net_link *link)
{
  if (transport_forked()) {
    return -EPERM;
  }
  transport_remove_link(link->transport, link);
  link_destroy(link);
  transport_serve();
  return 0;
}
