/* SPDX-License-Identifier: Apache-2.0 */

#include "harp/stack/ip/neighbour.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/arp.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/link_output.h"
#include "harp/stack/limit.h"
#include "harp/stack/list.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/siphash.h"
#include "harp/stack/stack_state.h"

/* RFC 1122, 2.3.2.1: at most one request a second for one address. */
#define REQUEST_INTERVAL NS_PER_S
#define FRESH_TIME (60 * NS_PER_S)
#define DISPUTED_TIME (5 * NS_PER_S) /* a disputed address is checked again soon */

enum {
  UNICAST_REQUESTS = 2,      /* unicast requests in PROBE, before broadcast ones */
  REQUESTS_PER_SECOND = 256, /* first requests for unexpected addresses; as many repeats */
  QUEUED_SHARE = 8, /* at most 1/QUEUED_SHARE of the packet buffers may wait for ARP replies */
};

static void schedule_request(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  /* The same interval for all, so the list stays sorted. */
  neighbour->deadline = stack->now + REQUEST_INTERVAL;
  list_move(&stack->neighbours_waiting, &neighbour->waits);
}

static void send_request(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  /* A known neighbour gets unicast requests first (RFC 1122, 2.3.2.1). */
  bool unicast = neighbour->state == NEIGHBOUR_PROBE && neighbour->probes < UNICAST_REQUESTS;
  const uint8_t *to = unicast ? neighbour->mac : arp_broadcast;
  neighbour->probes++;
  neighbour->requested = stack->now;
  schedule_request(stack, neighbour);
  COUNT(stack, arp_requests_out);
  arp_send(stack, ARP_REQUEST, to, stack->config.address, arp_nobody, neighbour->address);
}

static void drop_queue(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  for (int i = 0; i < neighbour->queued; i++) {
    pool_put(&stack->packets, neighbour->queue[i]);
    COUNT(stack, arp_queue_drops);
  }
  stack->neighbour_frames -= neighbour->queued;
  neighbour->queued = 0;
  list_remove(&neighbour->holds);
}

static bool known(const struct harp_neighbour *neighbour)
{
  return neighbour->state == NEIGHBOUR_REACHABLE || neighbour->state == NEIGHBOUR_PROBE;
}

/* A keyed hash, so that an attacker cannot choose addresses that fall into one bucket. */
static uint32_t bucket_of(const struct harp_stack *stack, uint32_t address)
{
  return (uint32_t)(harp_siphash(stack->config.seed, address, 0) >> stack->neighbour_shift);
}

static struct harp_neighbour *find(const struct harp_stack *stack, uint32_t address)
{
  struct harp_neighbour *entry = stack->neighbour_buckets[bucket_of(stack, address)];
  while (entry && entry->address != address) {
    entry = entry->hash_next;
  }
  return entry;
}

/* Puts an entry without a connection into the list of entries that a new one may replace. */
static void find_place(struct harp_stack *stack, struct harp_neighbour *entry)
{
  if (entry->user_count > 0) {
    list_remove(&entry->idle_link);
  } else {
    bool incomplete = entry->state == NEIGHBOUR_INCOMPLETE;
    list_move(incomplete ? &stack->neighbours_incomplete : &stack->neighbours_idle,
              &entry->idle_link);
  }
}

static void set_state(struct harp_stack *stack, struct harp_neighbour *entry,
                      enum harp_neighbour_state state)
{
  entry->state = (uint8_t)state;
  entry->probes = 0;
  list_remove(&entry->waits); /* schedule_request adds it again */
  find_place(stack, entry);
}

static void release(struct harp_stack *stack, struct harp_neighbour *entry)
{
  struct harp_neighbour **link = &stack->neighbour_buckets[bucket_of(stack, entry->address)];
  while (*link != entry) {
    link = &(*link)->hash_next;
  }
  *link = entry->hash_next;
  drop_queue(stack, entry);
  entry->state = NEIGHBOUR_FREE;
  list_remove(&entry->waits);
  list_move(&stack->neighbours_free, &entry->idle_link);
}

/* Frees the oldest entry without a connection. Entries in INCOMPLETE go first, so forged senders,
 * which we answer too, do not replace a real neighbour. */
static void make_room(struct harp_stack *stack)
{
  struct harp_list *from = &stack->neighbours_idle;
  if (!list_empty(&stack->neighbours_incomplete)) {
    from = &stack->neighbours_incomplete;
  }
  COUNT(stack, neighbours_replaced);
  release(stack, HARP_CONTAINER(from->next, struct harp_neighbour, idle_link));
}

static struct harp_neighbour *create(struct harp_stack *stack, uint32_t address)
{
  if (list_empty(&stack->neighbours_free)) {
    make_room(stack);
  }
  struct harp_list *idle_link = stack->neighbours_free.next;
  struct harp_neighbour *entry = HARP_CONTAINER(idle_link, struct harp_neighbour, idle_link);
  struct harp_neighbour **bucket = &stack->neighbour_buckets[bucket_of(stack, address)];
  list_remove(idle_link);
  *entry = (struct harp_neighbour){.address = address, .hash_next = *bucket};
  list_init(&entry->waits);
  list_init(&entry->idle_link);
  list_init(&entry->users);
  list_init(&entry->holds);
  *bucket = entry;
  set_state(stack, entry, NEIGHBOUR_INCOMPLETE);
  return entry;
}

int neighbours_create(struct harp_stack *stack)
{
  bool any = stack->link_header != 0;
  stack->neighbour_count = any ? stack->config.max_connections + NEIGHBOURS_SPARE : 1;
  uint32_t buckets = hash_buckets(stack->neighbour_count, &stack->neighbour_shift);
  stack->neighbours = calloc(stack->neighbour_count, sizeof *stack->neighbours);
  stack->neighbour_buckets = calloc(buckets, sizeof(struct harp_neighbour *));
  stack->expected = calloc(buckets, sizeof *stack->expected);
  if (!stack->neighbours || !stack->neighbour_buckets || !stack->expected) {
    return -ENOMEM;
  }
  list_init(&stack->neighbours_free);
  list_init(&stack->neighbours_waiting);
  list_init(&stack->neighbours_holding);
  list_init(&stack->neighbours_incomplete);
  list_init(&stack->neighbours_idle);
  for (uint32_t i = 0; i < stack->neighbour_count; i++) {
    struct harp_neighbour *entry = &stack->neighbours[i];
    list_init(&entry->waits);
    list_init(&entry->users);
    list_init(&entry->holds);
    list_append(&stack->neighbours_free, &entry->idle_link);
  }
  if (!any) {
    create(stack, 0)->state = NEIGHBOUR_REACHABLE;
    stack->neighbours[0].deadline = UINT64_MAX;
  }
  return 0;
}

void neighbours_destroy(struct harp_stack *stack)
{
  free(stack->neighbours);
  free(stack->neighbour_buckets);
  free(stack->expected);
}

static void check(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  set_state(stack, neighbour, NEIGHBOUR_PROBE);
  send_request(stack, neighbour);
}

void neighbour_probe(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  if (neighbour->state == NEIGHBOUR_REACHABLE && neighbour->deadline != UINT64_MAX &&
      stack->now - neighbour->requested >= REQUEST_INTERVAL) {
    check(stack, neighbour);
  }
}

void neighbour_expect(struct harp_stack *stack, uint32_t address)
{
  stack->expected[bucket_of(stack, address)] = address;
}

/* Whether a request for this address is within the rate limits. A flood from forged addresses must
 * not cause a flood of ARP requests. */
static bool may_ask(struct harp_stack *stack, const struct harp_neighbour *entry)
{
  uint32_t address = entry->address;
  if (address == stack->config.gateway || stack->expected[bucket_of(stack, address)] == address) {
    return true;
  }
  bool before = entry->requested != 0;
  bool may = limit_allows(before ? &stack->arp_repeat_limit : &stack->arp_ask_limit, stack->now,
                          REQUESTS_PER_SECOND);
  COUNT_N(stack, arp_requests_limited, !may);
  return may;
}

static void ask_if_allowed(struct harp_stack *stack, struct harp_neighbour *entry)
{
  if (may_ask(stack, entry)) {
    send_request(stack, entry);
  } else {
    entry->probes++;
    schedule_request(stack, entry);
  }
}

struct harp_neighbour *neighbour_route(struct harp_stack *stack, uint32_t next_hop)
{
  if (stack->link_header == 0) {
    return &stack->neighbours[0];
  }
  if (next_hop == 0) {
    return NULL;
  }
  struct harp_neighbour *entry = find(stack, next_hop);
  if (!entry) {
    entry = create(stack, next_hop);
    if (next_hop == stack->config.address) {
      memcpy(entry->mac, stack->config.mac, 6);
      set_state(stack, entry, NEIGHBOUR_REACHABLE);
      entry->deadline = UINT64_MAX;
    } else {
      ask_if_allowed(stack, entry);
    }
  }
  return entry;
}

struct harp_neighbour *neighbour_attach(struct harp_stack *stack, uint32_t next_hop,
                                        struct harp_list *user)
{
  struct harp_neighbour *entry = neighbour_route(stack, next_hop);
  if (entry) {
    entry->user_count++;
    list_append(&entry->users, user);
    find_place(stack, entry);
  }
  return entry;
}

void neighbour_detach(struct harp_stack *stack, struct harp_neighbour *entry,
                      struct harp_list *user)
{
  list_remove(user);
  entry->user_count--;
  if (entry->user_count == 0 && entry->state == NEIGHBOUR_FAILED) {
    release(stack, entry);
  } else {
    find_place(stack, entry);
  }
}

bool neighbour_usable(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  if (neighbour->state == NEIGHBOUR_REACHABLE && stack->now >= neighbour->deadline) {
    check(stack, neighbour);
  } else if (neighbour->state == NEIGHBOUR_FAILED) {
    set_state(stack, neighbour, NEIGHBOUR_INCOMPLETE);
    ask_if_allowed(stack, neighbour);
  }
  return known(neighbour);
}

/* Frames for silent neighbours must not use up the packet buffers. Drops the oldest queue at the
 * limit. */
static void bound_queues(struct harp_stack *stack)
{
  if (stack->neighbour_frames >= HARP_MAX(stack->packets.total / QUEUED_SHARE, 1u)) {
    struct harp_list *first = stack->neighbours_holding.next;
    drop_queue(stack, HARP_CONTAINER(first, struct harp_neighbour, holds));
  }
}

void neighbour_queue(struct harp_stack *stack, struct harp_neighbour *neighbour,
                     const struct harp_tx_frame *frame)
{
  struct harp_packet *packet = NULL;
  if (neighbour->state == NEIGHBOUR_INCOMPLETE && neighbour->queued < NEIGHBOUR_QUEUE &&
      frame->length <= HARP_PACKET_DATA) {
    bound_queues(stack);
    /* Out-of-order data may have taken all other buffers but those for in-order data. */
    bool spare = stack->packets.available > stack->packets.total / ORDERED_SHARE;
    packet = spare ? pool_get(&stack->packets) : NULL;
  }
  if (!packet) {
    COUNT(stack, arp_queue_drops);
    return;
  }
  packet->length = 0;
  for (int i = 0; i < frame->iov_count; i++) {
    memcpy(packet->data + packet->length, frame->iov[i].iov_base, frame->iov[i].iov_len);
    packet->length += (uint32_t)frame->iov[i].iov_len;
  }
  packet->offset = frame->header_length;
  if (frame->checksum_needed) {
    uint16_t sum = harp_checksum(packet->data + frame->checksum_start,
                                 packet->length - frame->checksum_start);
    memcpy(packet->data + frame->checksum_start + frame->checksum_offset, &sum, 2);
  }
  if (neighbour->queued == 0) {
    list_append(&stack->neighbours_holding, &neighbour->holds);
  }
  neighbour->queue[neighbour->queued++] = packet;
  stack->neighbour_frames++;
}

static void send_queue(struct harp_stack *stack, struct harp_neighbour *neighbour)
{
  int count = neighbour->queued;
  neighbour->queued = 0;
  stack->neighbour_frames -= (uint32_t)count;
  list_remove(&neighbour->holds);
  for (int i = 0; i < count; i++) {
    struct harp_packet *packet = neighbour->queue[i];
    struct iovec iov = {packet->data, packet->length};
    struct harp_tx_frame frame = {.iov = &iov,
                                  .iov_count = 1,
                                  .header_length = (uint16_t)packet->offset,
                                  .length = packet->length};
    memcpy(packet->data + ETH_DST, neighbour->mac, 6);
    link_transmit(stack, &frame);
    pool_put(&stack->packets, packet);
  }
}

bool neighbour_is(struct harp_stack *stack, uint32_t address, const uint8_t *mac)
{
  const struct harp_neighbour *entry = find(stack, address);
  return entry && known(entry) && memcmp(entry->mac, mac, 6) == 0;
}

/* It updates existing entries only, so a flood of claims adds no entry. It takes another host's
 * claim to a known neighbour's address only after the neighbour has had time to answer unicast
 * requests. Nothing tells which of two hosts has the right to an address: the first one to claim it
 * keeps it while it answers. */
void neighbour_learn(struct harp_stack *stack, uint32_t address, const uint8_t *mac)
{
  struct harp_neighbour *entry = find(stack, address);
  if (!entry) {
    return;
  }
  bool same = memcmp(entry->mac, mac, 6) == 0;
  if (entry->state == NEIGHBOUR_REACHABLE && !same) {
    entry->disputed = true;
    if (stack->now - entry->requested >= REQUEST_INTERVAL) {
      check(stack, entry);
    } else { /* a flood of claims causes no flood of requests; this claim is checked later */
      entry->deadline = HARP_MIN(entry->deadline, entry->requested + REQUEST_INTERVAL);
    }
    return;
  }
  if (entry->state == NEIGHBOUR_PROBE && !same && entry->probes <= UNICAST_REQUESTS) {
    entry->disputed = true;
    return;
  }
  COUNT_N(stack, neighbour_conflicts, entry->state == NEIGHBOUR_PROBE && same && entry->disputed);
  memcpy(entry->mac, mac, 6);
  set_state(stack, entry, NEIGHBOUR_REACHABLE);
  entry->deadline = stack->now + (entry->disputed ? DISPUTED_TIME : FRESH_TIME);
  entry->disputed = false;
  entry->failed_at = 0;
  send_queue(stack, entry);
}

static void give_up(struct harp_stack *stack, struct harp_neighbour *neighbour,
                    neighbour_failed *failed)
{
  COUNT(stack, arp_failures);
  drop_queue(stack, neighbour);
  neighbour->failed_at = stack->now;
  if (neighbour->user_count > 0) {
    set_state(stack, neighbour, NEIGHBOUR_FAILED);
    failed(neighbour);
  } else {
    release(stack, neighbour);
  }
}

static void timer_fired(struct harp_stack *stack, struct harp_neighbour *entry,
                        neighbour_failed *failed)
{
  if (entry->state == NEIGHBOUR_PROBE && entry->probes < NEIGHBOUR_PROBES) {
    send_request(stack, entry);
  } else if (entry->state == NEIGHBOUR_PROBE) {
    /* It no longer answers at its hardware address: ask by broadcast from now on. */
    set_state(stack, entry, NEIGHBOUR_INCOMPLETE);
    send_request(stack, entry);
  } else if (entry->probes < NEIGHBOUR_PROBES) {
    ask_if_allowed(stack, entry);
  } else {
    give_up(stack, entry, failed);
  }
}

void neighbour_timers(struct harp_stack *stack, neighbour_failed *failed)
{
  while (neighbour_timers_next(stack) <= stack->now) {
    struct harp_list *first = stack->neighbours_waiting.next;
    timer_fired(stack, HARP_CONTAINER(first, struct harp_neighbour, waits), failed);
  }
}

uint64_t neighbour_timers_next(const struct harp_stack *stack)
{
  if (list_empty(&stack->neighbours_waiting)) {
    return UINT64_MAX;
  }
  struct harp_list *first = stack->neighbours_waiting.next;
  return HARP_CONTAINER(first, struct harp_neighbour, waits)->deadline;
}
