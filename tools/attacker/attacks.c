/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of attacks. Each frame is sent at its time, whether or not the victim has answered the
 * previous one. So an attack on an unused address puts the same frames on the wire.
 */
#include "tools/attacker/attacker.h"

#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

enum {
  HELLO_VERSIONS = 4, /* offset of the wire versions in a hello, and their bytes */
  VERSIONS = 4,
  HELLO_TOKEN = 8,
  TOKEN = 16,
  TINY = 81, /* frames per connection */
  OUT_OF_ORDER = 41,
};

static const uint8_t noise[1400];

/* Returns an unused address of the attacker's network. The last byte is 160 to 250. */
static uint32_t somebody(struct flood *flood)
{
  uint32_t host = 160 + (uint32_t)(flood_random(flood) % 91);
  return htonl((ntohl(flood->from) & 0xffffff00u) | host);
}

static size_t syn_from(struct flood *flood, struct visitor *visitor, uint32_t source, uint8_t *out)
{
  static const uint8_t options[] = {2, 4, 5, 180, 4, 2, 1, 3, 3, 7, 1, 1}; /* MSS, SACK, scale */
  struct segment segment = {.source = source,
                            .source_port = visitor->port,
                            .port = flood->port,
                            .seq = visitor->seq,
                            .flags = TH_SYN,
                            .options = options,
                            .option_bytes = sizeof options};
  visitor->seq++;
  return frame_tcp(flood, &segment, out);
}

static size_t syn(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  return syn_from(flood, visitor, flood->from, out);
}

/* Returns a segment of an open connection: an acknowledgement without payload. */
static struct segment of(const struct flood *flood, const struct visitor *visitor)
{
  return (struct segment){.source = flood->from,
                          .source_port = visitor->port,
                          .port = flood->port,
                          .seq = visitor->seq,
                          .ack = visitor->ack,
                          .flags = TH_ACK};
}

static size_t data(struct flood *flood, struct visitor *visitor, const uint8_t *payload,
                   size_t length, uint8_t *out)
{
  struct segment segment = of(flood, visitor);
  segment.flags |= TH_PUSH;
  segment.payload = payload;
  segment.payload_bytes = length;
  visitor->seq += (uint32_t)length;
  return frame_tcp(flood, &segment, out);
}

/* Copies a valid hello and replaces the token by one that depends only on the connection. */
static void wrong_hello(const struct flood *flood, const struct visitor *visitor,
                        uint8_t hello[FLOOD_HELLO])
{
  memcpy(hello, flood->hello, FLOOD_HELLO);
  memset(hello + HELLO_TOKEN, visitor->port & 0xff, TOKEN);
}

static size_t wrong_token(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t hello[FLOOD_HELLO];
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  wrong_hello(flood, visitor, hello);
  return data(flood, visitor, hello, sizeof hello, out);
}

static size_t replay(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  return data(flood, visitor, flood->hello, FLOOD_HELLO, out);
}

static size_t byte_by_byte(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t hello[FLOOD_HELLO];
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  wrong_hello(flood, visitor, hello);
  return data(flood, visitor, hello + visitor->step - 1, 1, out);
}

static size_t idle(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  struct segment segment = of(flood, visitor);
  return frame_tcp(flood, &segment, out);
}

/* Sends a hello that HARP answers, over a connection with a closed window. */
static size_t sitter(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t hello[FLOOD_HELLO];
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  memcpy(hello, flood->hello, FLOOD_HELLO);
  memset(hello + HELLO_VERSIONS, 0x7f, VERSIONS); /* a version that this release does not know */
  struct segment segment = of(flood, visitor);
  segment.payload = hello;
  segment.payload_bytes = sizeof hello;
  segment.closed = true;
  return frame_tcp(flood, &segment, out);
}

/* Builds a segment of `length` bytes, `distance` bytes beyond the next expected byte, which is
 * never sent. */
static size_t beyond(struct flood *flood, struct visitor *visitor, uint32_t distance, size_t length,
                     uint8_t *out)
{
  struct segment segment = of(flood, visitor);
  segment.seq += distance;
  segment.payload = noise;
  segment.payload_bytes = length;
  return frame_tcp(flood, &segment, out);
}

static size_t tiny(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  return beyond(flood, visitor, 2u * visitor->step, 1, out); /* as many holes as bytes */
}

/* Each segment lies before the previous one. */
static size_t out_of_order(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  if (visitor->step == 0) {
    return syn(flood, visitor, out);
  }
  uint32_t distance = (uint32_t)(OUT_OF_ORDER - visitor->step) * sizeof noise;
  return beyond(flood, visitor, distance + 1, sizeof noise, out);
}

static size_t syn_from_somebody(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  return syn_from(flood, visitor, somebody(flood), out);
}

static size_t stray(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = {.source = flood->from,
                            .source_port = visitor->port,
                            .port = flood->port,
                            .seq = (uint32_t)flood_random(flood),
                            .ack = (uint32_t)flood_random(flood),
                            .flags = TH_ACK};
  return frame_tcp(flood, &segment, out);
}

/* Builds a forged segment in the peer's name. */
static struct segment in_the_peers_name(struct flood *flood, uint8_t flags)
{
  return (struct segment){.source = flood->peer,
                          .source_port = flood->peer_port,
                          .port = flood->own_port,
                          .seq = (uint32_t)flood_random(flood),
                          .ack = (uint32_t)flood_random(flood),
                          .flags = flags};
}

static size_t acknowledgement(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = in_the_peers_name(flood, TH_ACK);
  return frame_tcp(flood, &segment, out);
}

static size_t reset(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = in_the_peers_name(flood, TH_RST);
  return frame_tcp(flood, &segment, out);
}

static size_t bytes(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = in_the_peers_name(flood, TH_ACK | TH_PUSH);
  segment.payload = noise;
  segment.payload_bytes = sizeof noise;
  return frame_tcp(flood, &segment, out);
}

static size_t sack_blocks(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = in_the_peers_name(flood, TH_ACK);
  uint8_t options[36] = {1, 1, 5, 34}; /* four blocks */
  for (size_t i = 4; i < sizeof options; i++) {
    options[i] = (uint8_t)flood_random(flood);
  }
  segment.options = options;
  segment.option_bytes = sizeof options;
  return frame_tcp(flood, &segment, out);
}

/* Sends either the first fragment of a packet or one from its middle. The other fragments never
 * follow. */
static size_t fragment(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  struct segment segment = in_the_peers_name(flood, TH_ACK);
  uint64_t draw = flood_random(flood);
  segment.payload = noise;
  segment.payload_bytes = sizeof noise;
  return frame_fragment(flood, &segment, (uint16_t)draw, draw >> 16 & 1 ? 0 : 64, out);
}

static size_t too_big(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint64_t draw = flood_random(flood);
  return frame_too_big(flood, somebody(flood), (uint32_t)draw, (uint16_t)(68 + (draw >> 32) % 1400),
                       out);
}

static size_t arp_question(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  return frame_arp(flood->mac, flood->to_mac, ARPOP_REQUEST, somebody(flood), flood->to, out);
}

const struct attack attacks[] = {
    {"tokens", "connections whose hello has a wrong token", 2, false, wrong_token},
    {"half-open", "SYNs without a further segment", 1, false, syn},
    {"replay", "connections that send a hello recorded from the wire", 2, false, replay},
    {"byte-by-byte", "connections that send a wrong hello a byte at a time", 1 + FLOOD_HELLO, false,
     byte_by_byte},
    {"sources", "SYNs from 91 unused addresses", 1, false, syn_from_somebody},
    {"idle", "connections without data", 2, false, idle},
    {"sitters", "connections that request answers with a closed window", 2, false, sitter},
    {"tiny", "connections that send single bytes with holes between them", TINY, false, tiny},
    {"out-of-order", "connections that send segments in reverse order, without the first one",
     OUT_OF_ORDER, false, out_of_order},
    {"stray", "acknowledgements that belong to no connection", 1, false, stray},
    {"acks", "acknowledgements in the peer's name, with any numbers", 1, true, acknowledgement},
    {"resets", "resets in the peer's name, with any sequence number", 1, true, reset},
    {"data", "payload in the peer's name, with any numbers", 1, true, bytes},
    {"sacks", "acknowledgements in the peer's name, with four random SACK blocks", 1, true,
     sack_blocks},
    {"fragments", "pieces of packets in the peer's name", 1, true, fragment},
    {"too-big", "ICMP messages about a live connection: fragmentation needed", 1, true, too_big},
    {"arp", "ARP requests in the names of 91 addresses", 1, false, arp_question},
};
const size_t attack_count = sizeof attacks / sizeof attacks[0];

const struct attack *attack_named(const char *name)
{
  for (size_t i = 0; i < attack_count; i++) {
    if (strcmp(name, attacks[i].name) == 0) {
      return &attacks[i];
    }
  }
  return NULL;
}
