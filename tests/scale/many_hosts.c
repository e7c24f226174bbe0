/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Very many hosts. Every pair of hosts opens a link and exchanges messages, in rounds in which each
 * host talks to one other. Then every pair talks again over the same links. Then host 0 is flooded.
 * Usage: many-hosts HOSTS UNKNOWN SECONDS [CONNECTIONS PORTS]. The flood lasts SECONDS, and
 * UNKNOWN more hosts open links with host 0 in it. A host has room for CONNECTIONS, or for as
 * many as needed, and listens on PORTS ports. Prints lines of a name and a number. Exit status 1:
 * an exchange failed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "harp/stack/bytes.h"
#include "tests/scale/network.h"

enum { TURN_MOST_MS = 20000, PORTS = 20 };

static uint32_t hosts;
static struct end *ends; /* one per pair, indexed by the smaller and the larger number */

static struct end *end_of(uint32_t a, uint32_t b)
{
  return &ends[(size_t)HARP_MIN(a, b) * hosts + HARP_MAX(a, b)];
}

/* Each host connects about half of its links itself. */
static void link_hosts(uint32_t a, uint32_t b, bool again)
{
  bool swap = (a + b) % 2 == (a < b);
  struct host *from = &network.hosts[swap ? b : a], *to = &network.hosts[swap ? a : b];
  if (again) {
    link_talk(end_of(a, b));
  } else {
    link_open(end_of(a, b), from, to, PORT);
  }
}

/* The circle method: each host links with one other host per round, and with all in the end. */
static bool everybody_talks(bool again)
{
  uint64_t talks = network.talks;
  for (uint32_t turn = 0; turn < hosts - 1; turn++) {
    link_hosts(hosts - 1, turn, again);
    for (uint32_t i = 1; i < hosts / 2; i++) {
      link_hosts((turn + i) % (hosts - 1), (turn + hosts - 1 - i) % (hosts - 1), again);
    }
    talks += hosts / 2;
    uint64_t most = network.now + TURN_MOST_MS * MS;
    while (network.talks < talks && network.now < most) {
      network_run(network.now + MS);
    }
    if (network.talks < talks) {
      return false;
    }
  }
  return true;
}

static void tell(const char *name, uint64_t number)
{
  printf("%s %llu\n", name, (unsigned long long)number);
}

static void tell_longest(const char *name)
{
  tell(name, network.longest / 1000);
  network.longest = 0;
}

static void tell_counters(void)
{
  tell("failed", network.failed);
  tell("neighbours_replaced", network_sum(HARP_COUNTER_neighbours_replaced));
  tell("arp_failures", network_sum(HARP_COUNTER_arp_failures));
  tell("arp_queue_drops", network_sum(HARP_COUNTER_arp_queue_drops));
  tell("arp_requests_out", network_sum(HARP_COUNTER_arp_requests_out));
  tell("tcp_retransmits", network_sum(HARP_COUNTER_tcp_retransmits));
}

int main(int argc, char **argv)
{
  bool right = argc == 4 || argc == 6;
  hosts = right ? (uint32_t)atoi(argv[1]) : 0;
  uint32_t unknown_hosts = right ? (uint32_t)atoi(argv[2]) : 0;
  uint64_t seconds = right ? (uint64_t)atoi(argv[3]) : 0;
  uint32_t connections = argc == 6 ? (uint32_t)atoi(argv[4]) : hosts * 8 / 7 + 256;
  uint32_t ports = argc == 6 ? (uint32_t)atoi(argv[5]) : PORTS;
  if (hosts < 4 || hosts % 2 || hosts + unknown_hosts > 60000) {
    fprintf(stderr, "usage: many-hosts HOSTS UNKNOWN SECONDS [CONNECTIONS PORTS] "
                    "(an even number of hosts)\n");
    return 2;
  }
  network_create(hosts + unknown_hosts, connections, ports);
  ends = calloc((size_t)hosts * hosts, sizeof *ends);
  if (!ends) {
    return 2;
  }
  bool good = everybody_talks(false);
  tell_longest("first_longest_us");
  good = good && everybody_talks(true);
  tell_longest("again_longest_us");
  tell("talks", network.talks);
  tell_counters();
  uint64_t talks = network.talks, links = flood(unknown_hosts, seconds);
  tell("flood_links", links);
  tell("flood_talks", network.talks - talks);
  tell_longest("flood_longest_us");
  tell("flood_failed", network.failed);
  const uint64_t *counters = harp_stack_counters(network.hosts[0].stack);
  tell("flood_half_open_dropped", counters[HARP_COUNTER_tcp_half_open_dropped]);
  tell("flood_cookies_out", counters[HARP_COUNTER_tcp_cookies_out]);
  tell("flood_listen_drops", counters[HARP_COUNTER_tcp_listen_drops]);
  network_destroy();
  free(ends);
  return good && network.failed == 0 ? 0 : 1;
}
