/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-agent-open: the privileged part of the agent. The agent has read and permitted a request,
 * and runs this program for it. The program opens the sockets with the code of the ports and sends
 * the reply to the client, whose connection is standard input.
 *
 * harp-agent-open packet IFACE QUEUES ADDRESS MAC MTU FIRST LAST
 * harp-agent-open listen IFACE FIRST COUNT LIMIT
 *   ADDRESS: of HARP's own, or "kernel". MAC: "-" for the device's. FIRST, LAST: the local ports.
 *
 * Exit: 0 the client has its sockets; 1 it has got an error, which is also on standard error; 2
 * wrong usage; 3 the client is gone, or its buffer is full; 4 a port of the range is in use, and
 * the client has got nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dpdk_glue/agent/agent_message.h"
#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/silent_listeners.h"
#include "dpdk_glue/packet/packet_sockets.h"

enum { CLIENT = STDIN_FILENO, DONE = 0, REFUSED = 1, USAGE = 2, GONE = 3, OCCUPIED = 4 };

/* --- The reply --- */

/* Sends the reply with its descriptors. Never waits: a client that does not read gets nothing. */
static int reply_with(struct harp_agent_reply *reply, const int *fds, unsigned count)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(HARP_AGENT_DESCRIPTORS * sizeof(int))];
  } control = {0};
  struct iovec piece = {reply, sizeof(*reply)};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  reply->magic = HARP_AGENT_MAGIC;
  reply->version = HARP_AGENT_VERSION;
  reply->descriptors = (uint16_t)count;
  if (count > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  return sendmsg(CLIENT, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? GONE : DONE;
}

static int refuse(struct harp_agent_reply *reply, int rc)
{
  fprintf(stderr, "%s\n", reply->error);
  reply->result = rc;
  return reply_with(reply, NULL, 0) == DONE ? REFUSED : GONE;
}

static void describe(struct harp_agent_reply *reply, const struct packet_sockets *sockets)
{
  const struct harp_netdev *device = &sockets->device;
  reply->index = device->index;
  reply->mtu = device->mtu;
  reply->gso_max = device->gso_max;
  reply->speed_mbps = device->speed_mbps;
  reply->address = device->address;
  reply->gateway = device->gateway;
  reply->prefix = device->prefix;
  memcpy(reply->mac, device->mac, sizeof(reply->mac));
  reply->state = (uint8_t)(device->up | device->carrier << 1);
  memcpy(reply->pci_path, device->pci_path, sizeof(reply->pci_path));
  reply->receive_buffer = sockets->receive_buffer;
  reply->queue_count = sockets->queue_count;
  reply->other_count = sockets->other_count;
  memcpy(reply->others, sockets->others, sizeof(reply->others));
}

/* --- packet --- */

/* Whether another program uses a port of the range. The filter would give its frames to HARP. */
static bool is_occupied(uint32_t address, unsigned first, unsigned last)
{
  for (unsigned port = first; port <= last; port++) {
    struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = address};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool used = fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0;
    if (fd >= 0)
      close(fd);
    if (used)
      return true;
  }
  return false;
}

static unsigned list_sockets(const struct packet_sockets *sockets, int *fds)
{
  unsigned count = 0;
  fds[count++] = sockets->control;
  for (unsigned q = 0; q < sockets->queue_count; q++)
    fds[count++] = sockets->data[q];
  for (unsigned q = 0; q < sockets->queue_count && harp_packet_sockets_have_arp(sockets); q++)
    fds[count++] = sockets->arp[q];
  return count;
}

static int open_packet(const struct harp_port_config *config)
{
  struct harp_agent_reply reply = {0};
  struct packet_sockets sockets;
  struct packet_range range = {config->ports_first, config->ports_last};
  struct packet_selection selection = {range.first ? &range : NULL, range.first ? 1 : 0};
  int fds[HARP_AGENT_DESCRIPTORS];
  harp_packet_sockets_init(&sockets);
  int rc = harp_packet_sockets_open(&sockets, config, &selection, reply.error);
  if (rc == 0 && !config->address && is_occupied(sockets.device.address, range.first, range.last))
    return OCCUPIED;
  if (rc == 0)
    rc = harp_packet_sockets_start(&sockets, config->device, reply.error);
  if (rc == 0) {
    rc = harp_packet_sockets_lock(&sockets);
    if (rc < 0)
      snprintf(reply.error, sizeof(reply.error), "packet:%s: cannot lock a filter: %s",
               config->device, strerror(-rc));
  }
  if (rc < 0)
    return refuse(&reply, rc);
  describe(&reply, &sockets);
  reply.ports_first = range.first;
  reply.ports_last = range.last;
  return reply_with(&reply, fds, list_sockets(&sockets, fds));
}

/* --- listen --- */

static int open_listeners(const char *name, struct silent_block *block)
{
  struct harp_agent_reply reply = {0};
  struct harp_netdev device;
  int fds[HARP_AGENT_DESCRIPTORS];
  int rc = harp_netdev_read("packet", name, &device, reply.error);
  if (rc < 0)
    return refuse(&reply, rc);
  int held = harp_silent_listeners_open(device.address, block, fds);
  if (held < 0) {
    snprintf(reply.error, sizeof(reply.error), "packet:%s: cannot hold port %u: %s", name,
             block->first, strerror(-held));
    return refuse(&reply, held);
  }
  reply.port = block->first;
  return reply_with(&reply, fds, (unsigned)held);
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
  if (strcmp(text, "-") == 0)
    return true;
  if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x", &byte[0], &byte[1], &byte[2], &byte[3], &byte[4],
             &byte[5]) != 6)
    return false;
  for (unsigned i = 0; i < 6; i++)
    mac[i] = (uint8_t)byte[i];
  return true;
}

static int run_packet(char **arg)
{
  int queues = number(arg[1], PACKET_QUEUES), mtu = number(arg[4], UINT16_MAX);
  int first = number(arg[5], UINT16_MAX), last = number(arg[6], UINT16_MAX);
  struct harp_port_config config = {.device = arg[0]};
  bool own = strcmp(arg[2], "kernel") != 0;
  if (queues < 1 || mtu < 0 || first < 0 || last < first ||
      (own && inet_pton(AF_INET, arg[2], &config.address) != 1) || !read_mac(arg[3], config.mac))
    return USAGE;
  config.queues = (uint16_t)queues;
  config.mtu = (uint16_t)mtu;
  config.ports_first = (uint16_t)first;
  config.ports_last = (uint16_t)last;
  return open_packet(&config);
}

static int run_listen(char **arg)
{
  int first = number(arg[1], UINT16_MAX), limit = number(arg[3], UINT16_MAX);
  int count = number(arg[2], HARP_AGENT_DESCRIPTORS);
  if (first < 1 || count < 1 || limit < first)
    return USAGE;
  struct silent_block block = {
      .first = (uint16_t)first, .limit = (uint16_t)limit, .count = (unsigned)count};
  return open_listeners(arg[0], &block);
}

int main(int argc, char **argv)
{
  if (argc == 9 && strcmp(argv[1], "packet") == 0)
    return run_packet(argv + 2);
  if (argc == 6 && strcmp(argv[1], "listen") == 0)
    return run_listen(argv + 2);
  fputs("harp-agent-open: harp agent runs this program; see harp agent --help\n", stderr);
  return USAGE;
}
