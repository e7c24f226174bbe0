/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the sockets of an xdp port for another process.
 */
#include <errno.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <sys/socket.h>

#include "dpdk_glue/agent/agent_device.h"
#include "dpdk_glue/xdp/xdp.h"
#include "harp/agent/agent_reply.h"

static void describe_xdp(struct harp_agent_reply *reply, const struct xdp_port *xdp)
{
  harp_agent_write_device(reply, &xdp->device);
  reply->queue_count = xdp->socket_count;
  reply->chunk = xdp->umem.chunk;
  reply->rx_chunks = xdp->umem.rx_chunks;
  reply->tx_chunks = XDP_TX_CHUNKS;
  reply->zero_copy = xdp->sockets[0].zero_copy;
  reply->several = xdp->sockets[0].several;
  reply->native = xdp->steering.native;
}

/* In the order of xdp_agent.c. The first one is for the interface's state; see open_packet.c. */
static unsigned list_xdp(const struct xdp_port *xdp, int *fds)
{
  unsigned count = 0;
  fds[count++] = xdp->other_fd;
  fds[count++] = xdp->other_fd;
  fds[count++] = xdp->umem.file;
  fds[count++] = xdp->steering.link;
  for (unsigned q = 0; q < xdp->socket_count; q++) {
    fds[count++] = xdp->sockets[q].fd;
  }
  return count;
}

/* The program takes the frames of all ports that the job may hold: the job cannot change its map.
 */
static enum agent_status pass_on(struct harp_port *port, const struct harp_port_config *config,
                                 bool vnet, struct harp_agent_reply *reply)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  int fds[HARP_AGENT_DESCRIPTORS], on = 1;
  if (!config->address) {
    if (agent_is_occupied(xdp->device.address, config->ports_first, config->ports_last)) {
      return AGENT_OCCUPIED;
    }
    harp_xdp_steering_hold(&xdp->steering, config->ports_first, config->ports_last);
  }
  if (vnet) {
    setsockopt(xdp->other_fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on));
  }
  int rc = harp_port_start(port, reply->error);
  if (rc == 0 && setsockopt(xdp->other_fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)) < 0) {
    rc = agent_lock_failed(reply, config->device, -errno);
  }
  if (rc < 0) {
    return agent_refuse(reply, rc);
  }
  describe_xdp(reply, xdp);
  reply->ports_first = config->ports_first;
  reply->ports_last = config->ports_last;
  enum agent_status status = agent_reply(reply, fds, list_xdp(xdp, fds));
  /* The link keeps the program attached after the packet socket is closed. */
  if (status == AGENT_DONE) {
    printf("program %u\n", harp_xdp_steering_program(&xdp->steering));
  }
  return status;
}

enum agent_status agent_open_xdp(const struct harp_port_config *config, bool vnet)
{
  struct harp_agent_reply reply = {0};
  struct harp_port *port;
  int rc = harp_xdp_open_shared(&port, config, reply.error);
  if (rc < 0) {
    return agent_refuse(&reply, rc);
  }
  enum agent_status status = pass_on(port, config, vnet, &reply);
  harp_port_close(port); /* the descriptors on their way keep the sockets and the program */
  return status;
}
