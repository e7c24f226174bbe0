/* SPDX-License-Identifier: Apache-2.0 */
/* Spoofed SYNs and ARP frames to host 0, and new links from and to it at the same time. */
#include <stdlib.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "tests/scale/network.h"

enum {
  PER_MS = 2, /* SYNs, ARP requests and ARP replies, each */
  LINK_EVERY_MS = 10,
  INVENTED = 1 << 20, /* first index of the unused addresses */
  INVENTED_COUNT = 50000,
};

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below)
{
  drawn = drawn * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)drawn * below >> 32);
}

static void ethernet(uint8_t *frame, uint32_t from, uint16_t type)
{
  mac_of(0, frame + ETH_DST);
  mac_of(from, frame + ETH_SRC);
  store_be16(frame + ETH_TYPE, type);
}

static void send_syn(void)
{
  uint8_t frame[ETH_HEADER + IP_HEADER + TCP_HEADER] = {0};
  uint8_t *ip = frame + ETH_HEADER, *tcp = ip + IP_HEADER;
  uint32_t who = INVENTED + draw(INVENTED_COUNT);
  ethernet(frame, who, ETH_TYPE_IPV4);
  ip[0] = 0x45;
  store_be16(ip + IP_TOTAL_LENGTH, IP_HEADER + TCP_HEADER);
  ip[IP_TTL_BYTE] = 64;
  ip[IP_PROTOCOL] = IP_PROTOCOL_TCP;
  store_address(ip + IP_SRC, address_of(who));
  store_address(ip + IP_DST, address_of(0));
  uint16_t sum = harp_checksum(ip, IP_HEADER);
  memcpy(ip + IP_SUM, &sum, 2);
  store_be16(tcp + TCP_SOURCE, (uint16_t)(1 + draw(60000)));
  store_be16(tcp + TCP_DEST, (uint16_t)(PORT + draw(network.ports)));
  store_be32(tcp + TCP_SEQUENCE, draw(UINT32_MAX));
  tcp[TCP_OFFSET] = 0x50;
  tcp[TCP_FLAG_BYTE] = FLAG_SYN;
  network_send(frame, sizeof frame);
}

static void send_arp(uint16_t operation, uint32_t station, uint32_t who)
{
  static const uint8_t fixed[ARP_OPERATION] = {0, 1, 8, 0, 6, 4}; /* Ethernet, IPv4 */
  uint8_t frame[ETH_HEADER + ARP_LENGTH] = {0};
  uint8_t *arp = frame + ETH_HEADER;
  ethernet(frame, station, ETH_TYPE_ARP);
  memcpy(arp, fixed, sizeof fixed);
  store_be16(arp + ARP_OPERATION, operation);
  mac_of(station, arp + ARP_SENDER_MAC);
  store_address(arp + ARP_SENDER_IP, address_of(who));
  mac_of(0, arp + ARP_TARGET_MAC);
  store_address(arp + ARP_TARGET_IP, address_of(0));
  network_send(frame, sizeof frame);
}

static void attack(void)
{
  for (int i = 0; i < PER_MS; i++) {
    uint32_t nobody = INVENTED + draw(INVENTED_COUNT);
    send_syn();
    send_arp(ARP_REQUEST, nobody, nobody);
    /* claims the address of an existing host */
    send_arp(ARP_REPLY, nobody, 1 + draw(network.count - 1));
  }
}

/* Opens a link from or to host 0. The peers alternate between known hosts and hosts that it has
 * not met. */
static void new_link(struct end *end, uint64_t number, uint32_t unknown_hosts)
{
  struct host *victim = &network.hosts[0];
  uint32_t known = network.count - unknown_hosts;
  uint32_t who = number & 2 && number / 4 < unknown_hosts ? known + (uint32_t)(number / 4)
                                                          : 1 + draw(known - 1);
  struct host *other = &network.hosts[who];
  uint16_t port = (uint16_t)(PORT + draw(network.ports));
  if (number & 1) {
    link_open(end, victim, other, port);
  } else {
    link_open(end, other, victim, port);
  }
}

uint64_t flood(uint32_t unknown_hosts, uint64_t seconds)
{
  uint64_t count = seconds * 1000 / LINK_EVERY_MS, opened = 0;
  struct end *ends = calloc(count, sizeof *ends);
  if (!ends) {
    abort();
  }
  for (uint64_t ms = 0; ms < seconds * 1000; ms++) {
    attack();
    if (ms % LINK_EVERY_MS == 0) {
      new_link(&ends[opened], opened, unknown_hosts);
      opened++;
    }
    /* A link lasts two seconds. */
    if (opened > 200 && ms % LINK_EVERY_MS == 0) {
      link_abort(&ends[opened - 200]);
    }
    network_run(network.now + MS);
  }
  network_run(network.now + 1000 * MS);
  for (uint64_t i = 0; i < count; i++) {
    link_abort(&ends[i]);
  }
  network_run(network.now + MS);
  free(ends);
  return count;
}
