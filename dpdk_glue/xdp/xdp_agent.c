/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes an xdp port from an agent's reply.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_glue/agent/agent_device.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/xdp/xdp.h"

enum { CONTROL, OTHER, MEMORY, LINK, SOCKETS /* the order of the descriptors */ };

static int adopt(struct xdp_port *xdp, const struct harp_agent_reply *reply, const int *fds)
{
  unsigned queues = reply->queue_count;
  xdp->control_fd = fds[CONTROL];
  xdp->other_fd = fds[OTHER];
  xdp->steering.link = fds[LINK];
  xdp->steering.native = reply->native;
  for (unsigned q = 0; q < queues; q++) {
    xdp->sockets[q].fd = fds[SOCKETS + q];
  }
  xdp->socket_count = queues;
  int rc = harp_xdp_umem_adopt(&xdp->umem, fds[MEMORY], reply->chunk, reply->rx_chunks, queues);
  for (unsigned q = 0; q < queues && rc == 0; q++) {
    struct xdp_socket *xsk = &xdp->sockets[q];
    xsk->zero_copy = reply->zero_copy;
    xsk->several = reply->several;
    rc = harp_xdp_socket_adopt(xsk, xsk->fd, &xdp->umem);
  }
  return rc;
}

/* Other releases may divide the sockets' memory in other ways. */
static bool is_known(const struct harp_agent_reply *reply, int count)
{
  unsigned queues = reply->queue_count;
  return queues >= 1 && queues <= XDP_NIC_QUEUES && count == (int)(SOCKETS + queues) &&
         reply->tx_chunks == XDP_TX_CHUNKS && reply->rx_chunks >= 1 &&
         (reply->chunk == XDP_SMALL_CHUNK || reply->chunk == XDP_LARGE_CHUNK);
}

int harp_xdp_agent_open(struct xdp_port *xdp, const struct harp_port_config *config, char *error)
{
  const char *name = xdp->spec.interface;
  struct harp_agent_reply reply;
  int fds[HARP_AGENT_DESCRIPTORS];
  int count = harp_agent_open(&xdp->agent, "xdp", config, &reply, fds, error);
  if (count < 0) {
    return count;
  }
  if (!is_known(&reply, count)) {
    for (int i = 0; i < count; i++) {
      close(fds[i]);
    }
    return harp_port_fail(error, -EPROTO,
                          "xdp:%s: the agent is of a release with another layout of the sockets' "
                          "memory; run the same release of HARP on the node",
                          name);
  }
  harp_agent_read_device(&xdp->device, &reply);
  int rc = adopt(xdp, &reply, fds);
  if (rc == -EBUSY) {
    return harp_port_fail(error, -EOPNOTSUPP,
                          "xdp:%s: this kernel lets no process map a socket that the agent has "
                          "bound (Linux 6.4 does); set device = packet:%s, or set HARP_AGENT= "
                          "(empty) to use HARP's own privileges",
                          name, name);
  }
  return rc < 0 ? harp_port_fail(error, rc, "xdp:%s: cannot map the agent's sockets: %s", name,
                                 strerror(-rc))
                : 0;
}
