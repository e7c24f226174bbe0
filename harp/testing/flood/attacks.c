/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of attacks. Each frame is sent at its time, whether or not the victim has
 * answered the one before: the same attack on an address that nobody owns puts the same
 * frames on the wire.
 */
#include "harp/testing/flood/flood.h"

#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

enum { HELLO_TOKEN = 8, TOKEN = 16 /* bytes */ };

/* An address of the attacker's network that no host has: the last byte is 160 to 250. */
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

static size_t data(struct flood *flood, struct visitor *visitor, const uint8_t *bytes,
                   size_t length, uint8_t *out)
{
  struct segment segment = {.source = flood->from,
                            .source_port = visitor->port,
                            .port = flood->port,
                            .seq = visitor->seq,
                            .ack = visitor->ack,
                            .flags = TH_ACK | TH_PUSH,
                            .payload = bytes,
                            .payload_bytes = length};
  visitor->seq += (uint32_t)length;
  return frame_tcp(flood, &segment, out);
}

/* A hello as good as any but for its token, which depends on the connection only. */
static void wrong_hello(const struct flood *flood, const struct visitor *visitor,
                        uint8_t hello[FLOOD_HELLO])
{
  memcpy(hello, flood->hello, FLOOD_HELLO);
  memset(hello + HELLO_TOKEN, visitor->port & 0xff, TOKEN);
}

static size_t wrong_token(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t hello[FLOOD_HELLO];
  if (visitor->step == 0)
    return syn(flood, visitor, out);
  wrong_hello(flood, visitor, hello);
  return data(flood, visitor, hello, sizeof hello, out);
}

static size_t replay(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  if (visitor->step == 0)
    return syn(flood, visitor, out);
  return data(flood, visitor, flood->hello, FLOOD_HELLO, out);
}

static size_t byte_by_byte(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t hello[FLOOD_HELLO];
  if (visitor->step == 0)
    return syn(flood, visitor, out);
  wrong_hello(flood, visitor, hello);
  return data(flood, visitor, hello + visitor->step - 1, 1, out);
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

/* Out of the blue, in the peer's name. */
static size_t in_the_peers_name(struct flood *flood, uint8_t flags, const uint8_t *options,
                                size_t option_bytes, uint8_t *out)
{
  struct segment segment = {.source = flood->peer,
                            .source_port = flood->peer_port,
                            .port = flood->own_port,
                            .seq = (uint32_t)flood_random(flood),
                            .ack = (uint32_t)flood_random(flood),
                            .flags = flags,
                            .options = options,
                            .option_bytes = option_bytes};
  return frame_tcp(flood, &segment, out);
}

static size_t reset(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  return in_the_peers_name(flood, TH_RST, NULL, 0, out);
}

static size_t sack_blocks(struct flood *flood, struct visitor *visitor, uint8_t *out)
{
  uint8_t options[36] = {1, 1, 5, 34}; /* four blocks */
  for (size_t i = 4; i < sizeof options; i++)
    options[i] = (uint8_t)flood_random(flood);
  return in_the_peers_name(flood, TH_ACK, options, sizeof options, out);
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
    {"half-open", "SYNs and nothing behind them", 1, false, syn},
    {"replay", "connections that send a hello recorded from the wire", 2, false, replay},
    {"byte-by-byte", "connections that send a wrong hello a byte at a time", 1 + FLOOD_HELLO, false,
     byte_by_byte},
    {"sources", "SYNs from 91 addresses that nobody has", 1, false, syn_from_somebody},
    {"stray", "acknowledgements that belong to no connection", 1, false, stray},
    {"resets", "resets in the peer's name, with any sequence number", 1, true, reset},
    {"sacks", "acknowledgements in the peer's name, with four random SACK blocks", 1, true,
     sack_blocks},
    {"too-big", "ICMP messages about a live connection: a packet was too big", 1, true, too_big},
    {"arp", "ARP requests in the names of 91 addresses", 1, false, arp_question},
};
const size_t attack_count = sizeof attacks / sizeof attacks[0];
