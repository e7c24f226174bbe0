/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends ARP and ICMP, well-formed and nearly so, to a host with INCOMPLETE neighbours and with
 * connections that ICMP messages may quote.
 */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/list.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "tests/fuzz/ether.h"
#include "tests/fuzz/frames.h"

enum { MESSAGE_MAX = 200 };

enum operation {
  STEP_ARP,
  STEP_ICMP,
  STEP_CONNECT,
  STEP_TIME,
  STEP_ANNOUNCE,
  STEP_RAW,
  STEP_KINDS
};

struct step {
  uint8_t kind, choice, operation, code;
  uint16_t mtu, length;
  uint32_t number, address;
};
_Static_assert(sizeof(struct step) == STEP_SIZE, "an input is a list of them");

static struct world *world;

static const uint8_t everybody[6] = {255, 255, 255, 255, 255, 255};

static uint32_t address(unsigned choice, uint32_t other)
{
  const uint32_t addresses[4] = {WORLD_PEER, WORLD_ADDRESS, 0x0300090au + ((other & 63) << 24),
                                 other};
  return addresses[choice & 3];
}

/* Builds a MAC address whose last byte the step chooses. */
static void hardware(uint8_t out[6], unsigned choice)
{
  memcpy(out, ether_peer, 6);
  out[5] = (uint8_t)(1 + (choice & 7));
  out[0] |= choice & 8 ? 1 : 0; /* multicast bit */
}

static void arp(const struct step *step)
{
  uint8_t bytes[ETH_HEADER + ARP_LENGTH];
  struct ether_arp_words words = {
      .operation = step->operation & 0x80 ? step->mtu : 1 + (step->operation & 1),
      .sender = address(step->choice, step->address),
      .target = address(step->choice >> 2, step->number),
  };
  hardware(words.sender_mac, step->code);
  hardware(words.target_mac, step->code >> 4);
  ether_header(step->choice & 16 ? everybody : ether_own, words.sender_mac, ETH_TYPE_ARP, bytes);
  ether_arp(&words, bytes + ETH_HEADER);
  if (step->choice & 32) { /* a wrong byte within the first eight */
    bytes[ETH_HEADER + step->length % 8] ^= (uint8_t)(step->length >> 8);
  }
  uint32_t length = step->choice & 64 ? step->length % sizeof bytes : sizeof bytes;
  world_receive(world, bytes, length, step->choice & 128 ? step->mtu : length);
}

/* Quotes a segment, or a part of one, that the host has sent or could have sent. */
static uint32_t quoted(const struct step *step, uint8_t *out)
{
  const struct connection *connection = &world->connections[step->choice >> 6 & 1];
  const struct harp_tcp *tcp = world_find(world, connection);
  uint32_t length = frame_ipv4(
      address(step->choice & 1, WORLD_ADDRESS) == WORLD_PEER ? WORLD_ADDRESS : step->address,
      WORLD_PEER, step->choice & 2 ? step->code : IP_PROTOCOL_TCP, step->length, out);
  out[0] = step->choice & 4 ? (uint8_t)step->length : out[0];
  store_be16(out + length + TCP_SOURCE, connection->local_port);
  store_be16(out + length + TCP_DEST,
             (uint16_t)(WORLD_PEER_PORT + (connection - world->connections)));
  store_be32(out + length + TCP_SEQUENCE,
             tcp && step->choice & 8 ? tcp->snd.una + (step->number & 0xffff) : step->number);
  return length + 8;
}

static void icmp(const struct step *step)
{
  uint8_t bytes[ETH_HEADER + IP_HEADER + MESSAGE_MAX] = {0};
  uint8_t *message = bytes + ETH_HEADER + IP_HEADER;
  uint32_t length = ICMP_HEADER + quoted(step, message + ICMP_HEADER);
  length = step->choice & 16 ? step->mtu % (length + 1) : length;
  message[ICMP_TYPE] = step->operation;
  message[ICMP_CODE] = step->code;
  store_be16(message + ICMP_NEXT_MTU, step->mtu);
  ether_header(ether_own, ether_peer, ETH_TYPE_IPV4, bytes);
  frame_ipv4(WORLD_PEER, WORLD_ADDRESS, IP_PROTOCOL_ICMP, length, bytes + ETH_HEADER);
  length += ETH_HEADER + IP_HEADER;
  frame_mend(bytes + ETH_HEADER, length - ETH_HEADER);
  world_receive(world, bytes, length, step->choice & 32 ? step->length : length);
}

/* Opens a connection to a neighbour without a known MAC address. */
static void open_to(const struct step *step)
{
  static const struct harp_flow_ops nobody;
  struct harp_endpoint peer = {address(2, step->address), 80};
  struct harp_tcp *tcp;
  if (harp_flow_connect(world->stack, 0, peer, &nobody, NULL, &tcp) == 0) {
    harp_flow_set_timeout(tcp, 1 + step->mtu);
    harp_stack_flush(world->stack);
  }
}

/* Sends another protocol, or any first bytes after the IPv4 header. */
static void raw(const struct step *step)
{
  uint8_t bytes[ETH_HEADER + IP_HEADER + STEP_SIZE];
  ether_header(ether_own, ether_peer, ETH_TYPE_IPV4, bytes);
  frame_ipv4(WORLD_PEER, WORLD_ADDRESS, step->operation, STEP_SIZE, bytes + ETH_HEADER);
  memcpy(bytes + ETH_HEADER + IP_HEADER, step, STEP_SIZE);
  frame_mend(bytes + ETH_HEADER, sizeof bytes - ETH_HEADER);
  world_receive(world, bytes, sizeof bytes, step->choice & 1 ? step->length : sizeof bytes);
}

static void run(const struct step *step)
{
  switch (step->kind % STEP_KINDS) {
  case STEP_ARP: arp(step); break;
  case STEP_ICMP: icmp(step); break;
  case STEP_CONNECT: open_to(step); break;
  case STEP_TIME:
    world_advance(world, world->now + ((uint64_t)step->number << step->code % 10));
    break;
  case STEP_ANNOUNCE: harp_stack_announce(world->stack); break;
  default: raw(step);
  }
}

static void check_neighbours(void)
{
  const struct harp_stack *stack = world->stack;
  uint32_t frames = 0;
  for (uint32_t i = 0; i < stack->neighbour_count; i++) {
    const struct harp_neighbour *neighbour = &stack->neighbours[i];
    bool asking = neighbour->state == NEIGHBOUR_INCOMPLETE || neighbour->state == NEIGHBOUR_PROBE;
    frames += neighbour->queued;
    FUZZ_EXPECT(neighbour->state <= NEIGHBOUR_FAILED);
    FUZZ_EXPECT(neighbour->queued <= NEIGHBOUR_QUEUE);
    FUZZ_EXPECT(neighbour->state == NEIGHBOUR_INCOMPLETE || neighbour->queued == 0);
    FUZZ_EXPECT((neighbour->queued == 0) == list_empty(&neighbour->holds));
    FUZZ_EXPECT(!(neighbour->mac[0] & 1));
    FUZZ_EXPECT(asking != list_empty(&neighbour->waits));
    FUZZ_EXPECT(!asking || neighbour->deadline >= neighbour_timers_next(stack));
    FUZZ_EXPECT((neighbour->user_count > 0) == list_empty(&neighbour->idle_link));
    FUZZ_EXPECT((neighbour->user_count > 0) != list_empty(&neighbour->users));
    FUZZ_EXPECT(neighbour->state != NEIGHBOUR_FAILED || neighbour->user_count > 0);
  }
  FUZZ_EXPECT(frames == stack->neighbour_frames);
}

static void set_up(void) { world = ether_world(); }

static void one_step(const void *bytes)
{
  struct step step;
  memcpy(&step, bytes, sizeof step);
  run(&step);
  check_neighbours();
}

static void end(void)
{
  world_check(world);
  world_end(world);
}

const struct steps_target steps_target = {
    .most = 48, .set_up = set_up, .step = one_step, .end = end};
