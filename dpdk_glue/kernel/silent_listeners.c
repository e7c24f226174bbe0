/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/kernel/silent_listeners.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dpdk_glue/kernel/packet_filter.h"

/* Newer kernels require CAP_NET_ADMIN for a filter on a TCP socket. IP_MINTTL needs no
 * privilege: the kernel silently drops every packet with a TTL below 255 (RFC 5082). Hosts start
 * with a lower TTL, so this covers their segments. */
static int deafen(int fd)
{
  int least = 255;
  if (setsockopt(fd, IPPROTO_IP, IP_MINTTL, &least, sizeof(least)) < 0) {
    return -errno;
  }
  int rc = harp_packet_filter_deafen(fd);
  return rc == -EPERM ? 0 : rc;
}

/* Sets the filters before bind, so the kernel never answers a connection request. The socket
 * must listen, because the kernel resets segments to a port without a listener. */
static int listen_silently(uint32_t address, uint16_t *port)
{
  struct sockaddr_in name = {
      .sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = address};
  socklen_t length = sizeof(name);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -errno;
  }
  int rc = deafen(fd);
  if (rc == 0 && (bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 || listen(fd, 0) < 0 ||
                  getsockname(fd, (struct sockaddr *)&name, &length) < 0)) {
    rc = -errno;
  }
  if (rc < 0) {
    close(fd);
    return rc;
  }
  *port = ntohs(name.sin_port);
  return fd;
}

int harp_silent_listeners_open(uint32_t address, struct silent_block *block, int *fds)
{
  fds[0] = listen_silently(address, &block->first);
  if (fds[0] < 0) {
    return fds[0];
  }
  unsigned held = 1;
  for (; held < block->count && block->first + held <= block->limit; held++) {
    uint16_t next = (uint16_t)(block->first + held);
    if (block->offered && !harp_kernel_ports_offered(block->offered, next)) {
      break;
    }
    fds[held] = listen_silently(address, &next);
    if (fds[held] < 0) {
      break;
    }
  }
  return (int)held;
}
