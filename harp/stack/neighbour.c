/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/neighbour.h"

#include "harp/stack/checksum.h"
#include "harp/stack/internal.h"

/* RFC 1122, 2.3.2.1: at most one request a second for one address. */
#define ASK_INTERVAL NS_PER_S
#define FRESH_TIME (60 * NS_PER_S)
#define DISPUTED_TIME (5 * NS_PER_S) /* what the old owner says may be its last word */

enum {
  PROBE_DISTANCE = 8,        /* slots looked at for one address */
  ASKED_IN_PERSON = 2,       /* requests to a known neighbour, before everybody is asked */
  REPLIES_PER_SECOND = 1000, /* to strangers: a storm must not be answered by another */
  /* For strangers: no more than the table has room for until they are asked again. */
  REQUESTS_PER_SECOND = NEIGHBOURS,
};

static void send_arp(struct harp_stack *stack, uint16_t operation, const uint8_t *to_mac,
                     uint32_t sender_ip, const uint8_t *target_mac, uint32_t target_ip) {
  uint8_t out[ETH_HEADER + ARP_LENGTH];
  static const uint8_t fixed[ARP_OPERATION] = {0, 1, 8, 0, 6, 4}; /* Ethernet, IPv4 */
  memcpy(out + ETH_DST, to_mac, 6);
  memcpy(out + ETH_SRC, stack->config.mac, 6);
  store_be16(out + ETH_TYPE, ETH_TYPE_ARP);
  uint8_t *arp = out + ETH_HEADER;
  memcpy(arp, fixed, sizeof fixed);
  store_be16(arp + ARP_OPERATION, operation);
  memcpy(arp + ARP_SENDER_MAC, stack->config.mac, 6);
  store_address(arp + ARP_SENDER_IP, sender_ip);
  memcpy(arp + ARP_TARGET_MAC, target_mac, 6);
  store_address(arp + ARP_TARGET_IP, target_ip);
  struct iovec iov = {out, sizeof out};
  struct harp_tx_frame frame = {
      .iov = &iov, .iov_count = 1, .header_length = sizeof out, .length = sizeof out};
  if (stack->io.transmit(stack->io.user, &frame) == 0) {
    COUNT(stack, tx_frames);
    COUNT_N(stack, tx_bytes, frame.length);
  }
}

static const uint8_t broadcast[6] = {255, 255, 255, 255, 255, 255};
static const uint8_t nobody[6];

static void ask_later(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  neighbour->deadline = stack->now + ASK_INTERVAL;
  stack->neighbour_deadline = HARP_MIN(stack->neighbour_deadline, neighbour->deadline);
}

static void ask(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  /* A known neighbour is asked in person: only silence makes it doubtful. */
  bool in_person =
      neighbour->state == NEIGHBOUR_CHECKING && neighbour->probes < ASKED_IN_PERSON;
  const uint8_t *to = in_person ? neighbour->mac : broadcast;
  neighbour->probes++;
  neighbour->asked = stack->now;
  ask_later(stack, neighbour);
  COUNT(stack, arp_requests_out);
  send_arp(stack, ARP_REQUEST, to, stack->config.address, nobody, neighbour->address);
}

static void check(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  neighbour->state = NEIGHBOUR_CHECKING;
  neighbour->probes = 0;
  ask(stack, neighbour);
}

void harp_stack_announce(struct harp_stack *stack) {
  if (stack->link_header && !stack->io.only_asks) {
    COUNT(stack, arp_requests_out);
    send_arp(stack, ARP_REQUEST, broadcast, stack->config.address, nobody, stack->config.address);
  }
}

static void drop_queue(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  for (int i = 0; i < neighbour->queued; i++) {
    pool_put(&stack->packets, neighbour->queue[i]);
    COUNT(stack, arp_queue_drops);
  }
  neighbour->queued = 0;
}

static uint32_t slot_of(const struct harp_stack *stack, uint32_t address, uint32_t distance) {
  uint64_t hash = harp_siphash(stack->config.seed, address, 0);
  return (uint32_t)(hash + distance) % NEIGHBOURS;
}

static struct harp_neighbour *find(struct harp_stack *stack, uint32_t address) {
  for (uint32_t i = 0; i < PROBE_DISTANCE; i++) {
    struct harp_neighbour *entry = &stack->neighbours[slot_of(stack, address, i)];
    if (entry->state != NEIGHBOUR_FREE && entry->address == address) {
      return entry;
    }
  }
  return NULL;
}

/* Who has not answered yet goes before who has: senders that somebody invents, and
 * whom we answer all the same, do not push a peer out. */
static bool goes_before(const struct harp_neighbour *one, const struct harp_neighbour *other) {
  bool asked = one->state == NEIGHBOUR_ASKED;
  return asked != (other->state == NEIGHBOUR_ASKED) ? asked : one->used < other->used;
}

static struct harp_neighbour *create(struct harp_stack *stack, uint32_t address) {
  struct harp_neighbour *victim = NULL;
  for (uint32_t i = 0; i < PROBE_DISTANCE; i++) {
    struct harp_neighbour *entry = &stack->neighbours[slot_of(stack, address, i)];
    if (entry->state == NEIGHBOUR_FREE) {
      victim = entry;
      break;
    }
    if (!victim || goes_before(entry, victim)) {
      victim = entry;
    }
  }
  drop_queue(stack, victim);
  *victim = (struct harp_neighbour){.address = address, .state = NEIGHBOUR_ASKED};
  return victim;
}

void neighbour_expect(struct harp_stack *stack, uint32_t address) {
  stack->expected[slot_of(stack, address, 0)] = address;
}

/* Who floods us from invented addresses must not make us flood the network with questions. */
static bool may_ask(struct harp_stack *stack, uint32_t address) {
  if (address == stack->config.gateway || stack->expected[slot_of(stack, address, 0)] == address) {
    return true;
  }
  bool may = limit_allows(&stack->arp_ask_limit, stack->now, REQUESTS_PER_SECOND);
  COUNT_N(stack, arp_requests_limited, !may);
  return may;
}

struct harp_neighbour *neighbour_route(struct harp_stack *stack, uint32_t next_hop) {
  if (stack->link_header == 0) {
    stack->neighbours[0].address = next_hop;
    return &stack->neighbours[0];
  }
  if (next_hop == 0) {
    return NULL;
  }
  struct harp_neighbour *entry = find(stack, next_hop);
  if (!entry) {
    entry = create(stack, next_hop);
    entry->used = stack->now;
    if (next_hop == stack->config.address) {
      memcpy(entry->mac, stack->config.mac, 6);
      entry->state = NEIGHBOUR_KNOWN;
      entry->deadline = UINT64_MAX;
    } else if (may_ask(stack, next_hop)) {
      ask(stack, entry);
    } else {
      ask_later(stack, entry);
    }
  }
  return entry;
}

bool neighbour_usable(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  neighbour->used = stack->now;
  if (neighbour->state == NEIGHBOUR_KNOWN && stack->now >= neighbour->deadline) {
    check(stack, neighbour);
  }
  return neighbour->state == NEIGHBOUR_KNOWN || neighbour->state == NEIGHBOUR_CHECKING;
}

void neighbour_queue(struct harp_stack *stack, struct harp_neighbour *neighbour,
                     const struct harp_tx_frame *frame) {
  struct harp_packet *packet = NULL;
  if (neighbour->state == NEIGHBOUR_ASKED && neighbour->queued < NEIGHBOUR_QUEUE &&
      frame->length <= HARP_PACKET_DATA) {
    packet = pool_get(&stack->packets);
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
  neighbour->queue[neighbour->queued++] = packet;
}

static void send_queue(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  int count = neighbour->queued;
  neighbour->queued = 0;
  for (int i = 0; i < count; i++) {
    struct harp_packet *packet = neighbour->queue[i];
    struct iovec iov = {packet->data, packet->length};
    struct harp_tx_frame frame = {.iov = &iov,
                                  .iov_count = 1,
                                  .header_length = (uint16_t)packet->offset,
                                  .length = packet->length};
    ip_transmit(stack, neighbour, &frame);
    pool_put(&stack->packets, packet);
  }
}

/* Learns only about neighbours that we asked for, so a flood of claims fills
 * nothing; and while a neighbour is known, another's claim to its address is
 * not believed before the first has had the chance to answer. */
static void learn(struct harp_stack *stack, uint32_t address, const uint8_t *mac) {
  struct harp_neighbour *entry = find(stack, address);
  if (!entry) {
    return;
  }
  bool same = memcmp(entry->mac, mac, 6) == 0;
  if (entry->state == NEIGHBOUR_KNOWN && !same) {
    entry->disputed = true;
    if (stack->now - entry->asked >= ASK_INTERVAL) {
      check(stack, entry);
    } else { /* a flood of claims does not make us ask all the time, nor this one be forgotten */
      entry->deadline = HARP_MIN(entry->deadline, entry->asked + ASK_INTERVAL);
    }
    return;
  }
  if (entry->state == NEIGHBOUR_CHECKING && !same && entry->probes <= ASKED_IN_PERSON) {
    entry->disputed = true;
    return;
  }
  memcpy(entry->mac, mac, 6);
  entry->state = NEIGHBOUR_KNOWN;
  entry->probes = 0;
  entry->deadline = stack->now + (entry->disputed ? DISPUTED_TIME : FRESH_TIME);
  entry->disputed = false;
  send_queue(stack, entry);
}

/* A neighbour that we know is always answered. */
static bool may_reply(struct harp_stack *stack, uint32_t address, const uint8_t *mac) {
  const struct harp_neighbour *entry = find(stack, address);
  if (entry && entry->state != NEIGHBOUR_ASKED && memcmp(entry->mac, mac, 6) == 0) {
    return true;
  }
  bool may = limit_allows(&stack->arp_limit, stack->now, REPLIES_PER_SECOND);
  COUNT_N(stack, arp_replies_limited, !may);
  return may;
}

static void answer(struct harp_stack *stack, uint32_t address, const uint8_t *mac) {
  if (!stack->io.only_asks) {
    COUNT(stack, arp_replies_out);
    send_arp(stack, ARP_REPLY, mac, stack->config.address, mac, address);
  }
}

void arp_input(struct harp_stack *stack, const uint8_t *frame, uint32_t length) {
  if (length < ETH_HEADER + ARP_LENGTH) {
    COUNT(stack, rx_drop_truncated);
    return;
  }
  const uint8_t *arp = frame + ETH_HEADER;
  static const uint8_t fixed[ARP_OPERATION] = {0, 1, 8, 0, 6, 4};
  uint16_t operation = load_be16(arp + ARP_OPERATION);
  if (memcmp(arp, fixed, sizeof fixed) != 0 ||
      (operation != ARP_REQUEST && operation != ARP_REPLY)) {
    COUNT(stack, rx_drop_malformed);
    return;
  }
  const uint8_t *sender_mac = arp + ARP_SENDER_MAC;
  if (sender_mac[0] & 1) { /* an answer to many would multiply the question */
    COUNT(stack, rx_drop_malformed);
    return;
  }
  uint32_t sender = load_address(arp + ARP_SENDER_IP);
  uint32_t target = load_address(arp + ARP_TARGET_IP);
  if (sender == stack->config.address) {
    if (memcmp(sender_mac, stack->config.mac, 6) != 0) {
      COUNT(stack, arp_conflicts);
    } else {
      COUNT(stack, rx_drop_source);
    }
    return;
  }
  if (target == stack->config.address && operation == ARP_REQUEST) {
    COUNT(stack, arp_requests_in);
    if (may_reply(stack, sender, sender_mac)) {
      neighbour_expect(stack, sender); /* who asks has something to say, and wants an answer */
      answer(stack, sender, sender_mac);
    }
  } else if (operation == ARP_REPLY) {
    COUNT(stack, arp_replies_in);
  } else {
    COUNT(stack, rx_drop_not_ours);
  }
  if (sender != 0) {
    learn(stack, sender, sender_mac);
  }
}

static void give_up(struct harp_stack *stack, struct harp_neighbour *neighbour) {
  COUNT(stack, arp_failures);
  drop_queue(stack, neighbour);
  neighbour->state = NEIGHBOUR_FREE;
  tcp_neighbour_failed(stack, neighbour->address);
}

static void timer_fired(struct harp_stack *stack, struct harp_neighbour *entry) {
  if (entry->probes < NEIGHBOUR_PROBES) {
    ask(stack, entry);
  } else if (entry->state == NEIGHBOUR_CHECKING) {
    /* It no longer answers at its old address: anyone may have it now. */
    entry->state = NEIGHBOUR_ASKED;
    entry->probes = 0;
    ask(stack, entry);
  } else {
    give_up(stack, entry);
  }
}

void neighbour_timers(struct harp_stack *stack) {
  if (stack->now < stack->neighbour_deadline) {
    return;
  }
  stack->neighbour_deadline = UINT64_MAX;
  for (int i = 0; i < NEIGHBOURS; i++) {
    struct harp_neighbour *entry = &stack->neighbours[i];
    if (entry->state != NEIGHBOUR_ASKED && entry->state != NEIGHBOUR_CHECKING) {
      continue;
    }
    if (stack->now >= entry->deadline) {
      timer_fired(stack, entry);
    } else {
      stack->neighbour_deadline = HARP_MIN(stack->neighbour_deadline, entry->deadline);
    }
  }
}
