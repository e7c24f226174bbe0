/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relay's packet sockets. PACKET_VNET_HDR shows the work that a host left to its device.
 * AF_PACKET receives every frame, also those for other addresses.
 */
#include "tools/relay/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
  RECEIVE_BUFFER = 64 << 20, /* bytes: the relay itself must not lose a burst */
  SEND_BUFFER = 8 << 20,
};

static int failed(int fd, const char *interface, const char *what, char *error)
{
  int status = -errno;

  snprintf(error, RELAY_ERROR_SIZE, "relay: %s: %s: %s", interface, what, strerror(errno));
  if (fd >= 0) {
    close(fd);
  }
  return status;
}

static int set(int fd, int level, int option, int value)
{
  return setsockopt(fd, level, option, &value, sizeof value);
}

int relay_socket_open(const char *interface, int *mtu, char *error)
{
  struct ifreq request = {0};
  struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};

  /* Protocol 0: no frame arrives before bind. */
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return failed(fd, interface, "packet socket (CAP_NET_RAW is needed)", error);
  }
  snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
  if (ioctl(fd, SIOCGIFMTU, &request) < 0) {
    return failed(fd, interface, "no such interface in this namespace", error);
  }
  *mtu = request.ifr_mtu;
  if (set(fd, SOL_PACKET, PACKET_VNET_HDR, 1) < 0 ||
      set(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) < 0) {
    return failed(fd, interface, "PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING (Linux 4.20)", error);
  }
  if (set(fd, SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER) < 0 ||
      set(fd, SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER) < 0) {
    return failed(fd, interface, "socket buffers (CAP_NET_ADMIN is needed)", error);
  }
  address.sll_ifindex = (int)if_nametoindex(interface);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) {
    return failed(fd, interface, "bind", error);
  }
  return fd;
}

int relay_socket_receive(struct relay_path *path, uint64_t now_ns)
{
  static struct {
    struct virtio_net_hdr vnet;
    _Alignas(64) uint8_t before[RELAY_ALIGN];
    uint8_t frame[RELAY_LARGE_FRAME];
  } slots[RELAY_BATCH];
  struct iovec parts[RELAY_BATCH][2];
  struct mmsghdr messages[RELAY_BATCH];

  memset(messages, 0, sizeof messages);
  for (int i = 0; i < RELAY_BATCH; i++) {
    parts[i][0] = (struct iovec){&slots[i].vnet, sizeof slots[i].vnet};
    parts[i][1] = (struct iovec){slots[i].frame, sizeof slots[i].frame};
    messages[i].msg_hdr.msg_iov = parts[i];
    messages[i].msg_hdr.msg_iovlen = 2;
  }
  int count = recvmmsg(path->in, messages, RELAY_BATCH, MSG_DONTWAIT, NULL);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR || errno == ENETDOWN ? 0 : -errno;
  }
  for (int i = 0; i < count; i++) {
    size_t length = messages[i].msg_len;

    if (length < sizeof slots[i].vnet || messages[i].msg_hdr.msg_flags & MSG_TRUNC) {
      path->counts.unusable++;
    } else {
      relay_frame_complete(path, &slots[i].vnet, slots[i].frame, length - sizeof slots[i].vnet,
                           now_ns);
    }
  }
  return count;
}

int relay_socket_send(struct relay_path *path, const struct relay_frame *frames, int count)
{
  static struct virtio_net_hdr nothing_left_to_do;
  struct iovec parts[RELAY_BATCH][2];
  struct mmsghdr messages[RELAY_BATCH];

  memset(messages, 0, sizeof messages);
  for (int i = 0; i < count; i++) {
    parts[i][0] = (struct iovec){&nothing_left_to_do, sizeof nothing_left_to_do};
    parts[i][1] = (struct iovec){frames[i].data, frames[i].length};
    messages[i].msg_hdr.msg_iov = parts[i];
    messages[i].msg_hdr.msg_iovlen = 2;
  }
  int sent = sendmmsg(path->out, messages, (unsigned)count, MSG_DONTWAIT);
  if (sent < 0) {
    return -errno;
  }
  for (int i = 0; i < sent; i++) {
    path->counts.bytes_out += frames[i].length;
  }
  path->counts.frames_out += (uint64_t)sent;
  return sent;
}

uint64_t relay_socket_lost(int fd)
{
  struct tpacket_stats stats;
  socklen_t length = sizeof stats;

  return getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) ? 0 : stats.tp_drops;
}
