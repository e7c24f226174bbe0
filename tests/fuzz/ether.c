/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/ether.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "tests/fuzz/frames.h"

const uint8_t ether_own[6] = {2, 0, 0, 0, 0, 2}, ether_peer[6] = {2, 0, 0, 0, 0, 1};

uint32_t ether_header(const uint8_t *to, const uint8_t *from, uint16_t type, uint8_t *out)
{
  memcpy(out + ETH_DST, to, 6);
  memcpy(out + ETH_SRC, from, 6);
  store_be16(out + ETH_TYPE, type);
  return ETH_HEADER;
}

uint32_t ether_arp(const struct ether_arp_words *arp, uint8_t *out)
{
  static const uint8_t kind[6] = {0, 1, 8, 0, 6, 4}; /* IPv4 over Ethernet */
  memcpy(out, kind, sizeof kind);
  store_be16(out + ARP_OPERATION, arp->operation);
  memcpy(out + ARP_SENDER_MAC, arp->sender_mac, 6);
  store_address(out + ARP_SENDER_IP, arp->sender);
  memcpy(out + ARP_TARGET_MAC, arp->target_mac, 6);
  store_address(out + ARP_TARGET_IP, arp->target);
  return ARP_LENGTH;
}

static void hand_over(struct world *world, uint32_t seq, uint32_t ack, uint8_t flags)
{
  uint8_t bytes[ETH_HEADER + MAX_HEADERS];
  struct fuzz_segment segment = {.from = WORLD_PEER,
                                 .to = WORLD_ADDRESS,
                                 .from_port = WORLD_PEER_PORT,
                                 .to_port = WORLD_LISTENER,
                                 .seq = seq,
                                 .ack = ack,
                                 .window = 20000,
                                 .flags = flags};
  uint32_t length = ether_header(ether_own, ether_peer, ETH_TYPE_IPV4, bytes);
  length += frame_tcp_headers(&segment, bytes + length);
  frame_mend(bytes + ETH_HEADER, length - ETH_HEADER);
  world_receive(world, bytes, length, length);
}

struct world *ether_world(void)
{
  uint8_t bytes[ETH_HEADER + ARP_LENGTH];
  struct ether_arp_words answer = {
      .operation = ARP_REPLY, .sender = WORLD_PEER, .target = WORLD_ADDRESS};
  memcpy(answer.sender_mac, ether_peer, 6);
  memcpy(answer.target_mac, ether_own, 6);
  struct world *world = world_create(HARP_LINK_ETHERNET);
  struct connection *connection = &world->connections[0];
  hand_over(world, 1000, 0, FLAG_SYN);
  ether_header(ether_own, ether_peer, ETH_TYPE_ARP, bytes);
  ether_arp(&answer, bytes + ETH_HEADER);
  world_receive(world, bytes, sizeof bytes, sizeof bytes);
  hand_over(world, 1001, world_find(world, connection)->snd.nxt, FLAG_ACK);
  FUZZ_EXPECT(connection->tcp && connection->tcp->state == TCP_ESTABLISHED);
  world_push(connection, 6000, true);
  harp_stack_flush(world->stack);
  world_check(world);
  return world;
}
