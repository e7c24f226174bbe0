/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/attacker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SNAP = 2048 /* bytes of a frame to inspect */ };

int flood_open(const char *interface, uint8_t mac[6])
{
  struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
  struct ifreq request = {0};
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), yes = 1;
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
  address.sll_ifindex = (int)if_nametoindex(interface);
  if (fd >= 0 && address.sll_ifindex > 0 && ioctl(fd, SIOCGIFHWADDR, &request) == 0 &&
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) == 0 &&
      bind(fd, (struct sockaddr *)&address, sizeof address) == 0) {
    memcpy(mac, request.ifr_hwaddr.sa_data, 6);
    return fd;
  }
  fprintf(stderr,
          "harp-flood: %s: %s; name an interface of this network namespace, and run as "
          "root\n",
          interface, strerror(errno));
  if (fd >= 0) {
    close(fd);
  }
  return -1;
}

bool hello_seen(const uint8_t *frame, size_t length, uint32_t address)
{
  struct ether_header header;
  struct iphdr ip;
  struct tcphdr tcp;
  char from[INET_ADDRSTRLEN];
  if (length < sizeof header + sizeof ip + sizeof tcp) {
    return false;
  }
  memcpy(&header, frame, sizeof header);
  if (header.ether_type != htons(ETHERTYPE_IP)) {
    return false;
  }
  memcpy(&ip, frame + sizeof header, sizeof ip);
  size_t at = sizeof header + ip.ihl * 4u;
  if (ip.daddr != address || ip.protocol != IPPROTO_TCP || length < at + sizeof tcp) {
    return false;
  }
  memcpy(&tcp, frame + at, sizeof tcp);
  at += tcp.doff * 4u;
  if (length < at + FLOOD_HELLO || memcmp(frame + at, "HARP", 4) != 0) {
    return false;
  }
  inet_ntop(AF_INET, &ip.saddr, from, sizeof from);
  printf("{\"mac\": \"%02x:%02x:%02x:%02x:%02x:%02x\", ", frame[0], frame[1], frame[2], frame[3],
         frame[4], frame[5]);
  printf("\"peer\": \"%s\", \"peer_port\": %u, \"port\": %u, \"hello\": \"", from,
         ntohs(tcp.source), ntohs(tcp.dest));
  for (int i = 0; i < FLOOD_HELLO; i++) {
    printf("%02x", frame[at + (size_t)i]);
  }
  printf("\"}\n");
  fflush(stdout);
  return true;
}

int rx(const char *interface, uint32_t address, unsigned seconds)
{
  uint8_t mac[6], frame[SNAP];
  time_t limit = time(NULL) + seconds;
  struct pollfd ready = {.fd = flood_open(interface, mac), .events = POLLIN};
  if (ready.fd < 0) {
    return 1;
  }
  puts("ready");
  fflush(stdout);
  while (time(NULL) < limit) {
    ssize_t length = poll(&ready, 1, 1000) > 0 ? recv(ready.fd, frame, sizeof frame, 0) : 0;
    if (length > 0 && hello_seen(frame, (size_t)length, address)) {
      return 0;
    }
  }
  fprintf(stderr, "harp-flood: no hello arrived within %u s: does HARP run there?\n", seconds);
  return 1;
}
