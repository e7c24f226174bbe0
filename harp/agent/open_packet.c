/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the sockets of a packet port for another process.
 */
#include <string.h>

#include "dpdk_glue/agent/agent_device.h"
#include "dpdk_glue/packet/packet_sockets.h"
#include "harp/agent/agent_reply.h"

/* The first one is for the interface's state. A packet socket whose filter is locked serves: a UDP
 * socket would let the client talk to this namespace's programs. */
static unsigned list_sockets(const struct packet_sockets *sockets, int *fds)
{
  unsigned count = 0;
  fds[count++] = sockets->data[0];
  for (unsigned q = 0; q < sockets->queue_count; q++) {
    fds[count++] = sockets->data[q];
  }
  for (unsigned q = 0; q < sockets->queue_count && harp_packet_sockets_have_arp(sockets); q++) {
    fds[count++] = sockets->arp[q];
  }
  return count;
}

static void describe_packet(struct harp_agent_reply *reply, const struct packet_sockets *sockets)
{
  harp_agent_write_device(reply, &sockets->device);
  reply->receive_buffer = sockets->receive_buffer;
  reply->queue_count = sockets->queue_count;
  reply->other_count = sockets->other_count;
  memcpy(reply->others, sockets->others, sizeof(reply->others));
}

enum agent_status agent_open_packet(const struct harp_port_config *config)
{
  struct harp_agent_reply reply = {0};
  struct packet_sockets sockets;
  struct packet_range range = {config->ports_first, config->ports_last};
  struct packet_selection selection = {range.first ? &range : NULL, range.first ? 1 : 0};
  int fds[HARP_AGENT_DESCRIPTORS];
  harp_packet_sockets_init(&sockets);
  int rc = harp_packet_sockets_open(&sockets, config, &selection, reply.error);
  if (rc == 0 && !config->address &&
      agent_is_occupied(sockets.device.address, range.first, range.last)) {
    return AGENT_OCCUPIED;
  }
  if (rc == 0) {
    rc = harp_packet_sockets_start(&sockets, config->device, reply.error);
  }
  if (rc == 0) {
    rc = harp_packet_sockets_lock(&sockets);
    if (rc < 0) {
      agent_lock_failed(&reply, config->device, rc);
    }
  }
  if (rc < 0) {
    return agent_refuse(&reply, rc);
  }
  describe_packet(&reply, &sockets);
  reply.ports_first = range.first;
  reply.ports_last = range.last;
  return agent_reply(&reply, fds, list_sockets(&sockets, fds));
}
