/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the sockets of a packet port from an agent's reply.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_glue/agent/agent_device.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/packet/packet.h"

/* The descriptors: that for the interface's state, one data socket a queue, one ARP socket a queue
 * if there are ARP sockets. */
static int read_sockets(struct packet_sockets *sockets, const struct harp_agent_reply *reply,
                        unsigned queues, const int *fds, int count)
{
  sockets->receive_buffer = reply->receive_buffer;
  sockets->other_count = reply->other_count;
  memcpy(sockets->others, reply->others, sizeof(sockets->others));
  sockets->queue_count = queues;
  unsigned sets = harp_packet_sockets_have_arp(sockets) ? 2 : 1;
  if (reply->queue_count != queues || queues > PACKET_QUEUES || count != (int)(1 + sets * queues)) {
    sockets->queue_count = 0;
    return -EPROTO;
  }
  sockets->control = fds[0];
  memcpy(sockets->data, fds + 1, queues * sizeof(*fds));
  if (sets == 2) {
    memcpy(sockets->arp, fds + 1 + queues, queues * sizeof(*fds));
  }
  return 0;
}

int harp_packet_agent_open(struct packet_port *packet, const struct harp_port_config *config,
                           char *error)
{
  struct harp_agent_reply reply;
  int fds[HARP_AGENT_DESCRIPTORS];
  int count = harp_agent_open(&packet->agent, "packet", config, &reply, fds, error);
  if (count < 0) {
    return count;
  }
  harp_agent_read_device(&packet->sockets.device, &reply);
  if (read_sockets(&packet->sockets, &reply, config->queues, fds, count) < 0) {
    for (int i = 0; i < count; i++) {
      close(fds[i]);
    }
    return harp_port_fail(error, -EPROTO,
                          "packet:%s: the agent's reply has %d descriptors for %u instances; run "
                          "the same release of HARP on the node",
                          config->device, count, config->queues);
  }
  if (!config->address) {
    harp_packet_ports_init(&packet->ports, true, 0, config->queues, reply.ports_first,
                           reply.ports_last);
    packet->ports.agent = &packet->agent;
    packet->port.info.local_ports = reply.ports_last - reply.ports_first + 1u;
  }
  return 0;
}
