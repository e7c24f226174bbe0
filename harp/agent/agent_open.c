/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-agent-open: the privileged part of the agent. The agent has read and permitted a request,
 * and runs this program for it. The program opens the sockets with the code of the ports and sends
 * the reply to the client, whose connection is standard input.
 *
 * harp-agent-open packet|xdp IFACE QUEUES ADDRESS MAC MTU FIRST LAST [vnet]
 * harp-agent-open listen IFACE FIRST COUNT LIMIT [ADDRESS]
 *   ADDRESS: of HARP's own, or "kernel"; of "listen": the job's, or the interface's present one.
 *   MAC: "-" for the device's. FIRST, LAST: the local ports. vnet: each frame of the packet socket
 *   of an xdp device has a virtio-net header.
 *
 * Exit: enum agent_status.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/silent_listeners.h"
#include "dpdk_glue/packet/packet_sockets.h"
#include "harp/agent/agent_reply.h"

/* --- listen --- */

/* A listener drops every packet. The lock keeps its holder from taking the filter off, and from
 * connecting to this namespace's other programs. */
static int lock_listeners(const int *fds, int count)
{
  int on = 1;
  for (int i = 0; i < count; i++) {
    if (setsockopt(fds[i], SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)) < 0) {
      return -errno;
    }
  }
  return 0;
}

/* address: 0 for the interface's present one. */
static enum agent_status open_listeners(const char *name, uint32_t address,
                                        struct silent_block *block)
{
  struct harp_agent_reply reply = {0};
  struct harp_netdev device = {.address = address};
  int fds[HARP_AGENT_DESCRIPTORS];
  int rc = address ? 0 : harp_netdev_read("packet", name, &device, reply.error);
  if (rc < 0) {
    return agent_refuse(&reply, rc);
  }
  int held = harp_silent_listeners_open(device.address, block, fds);
  if (held < 0) {
    snprintf(reply.error, sizeof(reply.error), "packet:%s: cannot hold port %u: %s", name,
             block->first, strerror(-held));
    return agent_refuse(&reply, held);
  }
  rc = lock_listeners(fds, held);
  if (rc < 0) {
    return agent_refuse(&reply, agent_lock_failed(&reply, name, rc));
  }
  reply.port = block->first;
  return agent_reply(&reply, fds, (unsigned)held);
}

/* --- Arguments --- */

/* A whole number of at most `most`. The agent has checked it already; -1: it has not. */
static int number(const char *text, long most)
{
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  return *text && !*end && errno == 0 && value >= 0 && value <= most ? (int)value : -1;
}

static bool read_mac(const char *text, uint8_t *mac)
{
  unsigned byte[6];
  if (strcmp(text, "-") == 0) {
    return true;
  }
  if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4],
             &byte[5]) != 6) {
    return false;
  }
  for (unsigned i = 0; i < 6; i++) {
    mac[i] = (uint8_t)byte[i];
  }
  return true;
}

static bool read_config(char **arg, struct harp_port_config *config)
{
  int queues = number(arg[1], PACKET_QUEUES), mtu = number(arg[4], UINT16_MAX);
  int first = number(arg[5], UINT16_MAX), last = number(arg[6], UINT16_MAX);
  bool own = strcmp(arg[2], "kernel") != 0;
  *config = (struct harp_port_config){
      .device = arg[0],
      .queues = (uint16_t)queues,
      .mtu = (uint16_t)mtu,
      .ports_first = (uint16_t)first,
      .ports_last = (uint16_t)last,
  };
  return queues >= 1 && mtu >= 0 && first >= 0 && last >= first &&
         (!own || (inet_pton(AF_INET, arg[2], &config->address) == 1 && config->address)) &&
         read_mac(arg[3], config->mac);
}

static enum agent_status run_listen(char **arg)
{
  int first = number(arg[1], UINT16_MAX), limit = number(arg[3], UINT16_MAX);
  int count = number(arg[2], HARP_AGENT_DESCRIPTORS);
  uint32_t address = 0;
  if (first < 1 || count < 1 || limit < first ||
      (arg[4] && inet_pton(AF_INET, arg[4], &address) != 1)) {
    return AGENT_USAGE;
  }
  struct silent_block block = {
      .first = (uint16_t)first, .limit = (uint16_t)limit, .count = (unsigned)count};
  return open_listeners(arg[0], address, &block);
}

int main(int argc, char **argv)
{
  struct harp_port_config config;
  bool vnet = argc == 10 && strcmp(argv[9], "vnet") == 0;
  if (argc == 9 && strcmp(argv[1], "packet") == 0) {
    return read_config(argv + 2, &config) ? agent_open_packet(&config) : AGENT_USAGE;
  }
  if ((argc == 9 || vnet) && strcmp(argv[1], "xdp") == 0) {
    return read_config(argv + 2, &config) ? agent_open_xdp(&config, vnet) : AGENT_USAGE;
  }
  if ((argc == 6 || argc == 7) && strcmp(argv[1], "listen") == 0) {
    return run_listen(argv + 2);
  }
  fputs("harp-agent-open: harp agent runs this program; see harp agent --help\n", stderr);
  return AGENT_USAGE;
}
