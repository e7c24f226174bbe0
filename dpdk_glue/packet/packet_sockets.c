/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/packet/packet_sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/kernel/packet_tx.h"

/* --- The filter --- */

static struct packet_filter filter_of(const struct packet_sockets *sockets,
                                      const struct harp_port_config *config,
                                      const struct packet_selection *selection)
{
  const struct harp_netdev *device = &sockets->device;
  struct packet_filter filter = {
      .address = config->address ? config->address : device->address,
      .shared = !config->address,
      .ranges = selection->ranges,
      .range_count = selection->range_count,
      .ifindex = device->index,
      .others = sockets->others,
      .other_count = sockets->other_count,
  };
  memcpy(filter.mac, harp_netdev_own_mac(device, config) ? config->mac : device->mac, 6);
  return filter;
}

static enum packet_filter_kind data_kind(const struct packet_sockets *sockets)
{
  return harp_packet_sockets_have_arp(sockets) ? PACKET_FILTER_IPV4 : PACKET_FILTER_ALL;
}

int harp_packet_sockets_select(const struct packet_sockets *sockets,
                               const struct harp_port_config *config,
                               const struct packet_selection *selection)
{
  struct packet_filter filter = filter_of(sockets, config, selection);
  int rc = 0;
  for (unsigned q = 0; q < sockets->queue_count && rc == 0; q++) {
    rc = harp_packet_filter_attach(sockets->data[q], &filter, data_kind(sockets));
  }
  return rc;
}

/* --- Opening --- */

static int socket_failed(const char *name, int code, char *error)
{
  if (code == EPERM || code == EACCES) {
    return harp_port_fail(error, -EPERM,
                          "packet:%s: not allowed to open a packet socket; give the process "
                          "CAP_NET_RAW (run as root; docker run --cap-add NET_RAW; in a pod "
                          "securityContext.capabilities.add: [NET_RAW]), or run harp agent on the "
                          "node",
                          name);
  }
  return harp_port_fail(error, -code,
                        "packet:%s: cannot open a packet socket: %s; does this kernel have "
                        "CONFIG_PACKET, and is the limit of open files high enough?",
                        name, strerror(code));
}

static int setup_failed(const char *name, int code, char *error)
{
  return harp_port_fail(error, code,
                        "packet:%s: cannot set up a packet socket: %s; Linux 4.15 or "
                        "later is needed",
                        name, strerror(-code));
}

static void set_buffers(struct packet_sockets *sockets, int fd)
{
  socklen_t length = sizeof(sockets->receive_buffer);
  harp_packet_set_buffers(fd);
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &sockets->receive_buffer, &length);
}

/* Opens a socket that receives nothing until it is bound. Protocol 0 keeps it unbound until then,
 * so it never queues a frame that the filter would drop. */
static int open_socket(struct packet_sockets *sockets, int *out, const char *name,
                       const struct packet_filter *filter, enum packet_filter_kind kind,
                       char *error)
{
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return socket_failed(name, errno, error);
  }
  *out = fd;
  int on = 1;
  int rc = harp_packet_filter_attach(fd, filter, kind);
  if (rc == 0 && kind != PACKET_FILTER_ARP) {
    rc = setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) < 0 ? -errno : 0;
    set_buffers(sockets, fd);
  }
  return rc < 0 ? setup_failed(name, rc, error) : 0;
}

/* Makes the NIC accept HARP's own MAC address. The setting lasts as long as the socket. */
static int listen_for_mac(const struct packet_sockets *sockets, const uint8_t *mac,
                          const char *name, char *error)
{
  struct packet_mreq request = {
      .mr_ifindex = sockets->device.index, .mr_type = PACKET_MR_UNICAST, .mr_alen = 6};
  memcpy(request.mr_address, mac, 6);
  if (setsockopt(sockets->data[0], SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof(request)) <
      0) {
    return harp_port_fail(error, -errno,
                          "packet:%s: the interface does not accept a second MAC "
                          "address: %s; remove mac",
                          name, strerror(errno));
  }
  return 0;
}

static int check_queues(const struct harp_port_config *config, char *error)
{
  if (config->queues <= PACKET_QUEUES) {
    return 0;
  }
  return harp_port_fail(error, -EINVAL,
                        "packet:%s: instances = %u: a packet device has at most %d instances; "
                        "lower it",
                        config->device, config->queues, PACKET_QUEUES);
}

static int read_device(struct packet_sockets *sockets, const struct harp_port_config *config,
                       char *error)
{
  struct harp_netdev *device = &sockets->device;
  int rc = check_queues(config, error);
  if (rc == 0) {
    rc = harp_netdev_read("packet", config->device, device, error);
  }
  if (rc == 0) {
    rc = harp_netdev_check("packet", config->device, device, config, error);
  }
  if (rc < 0) {
    return rc;
  }
  sockets->control = harp_netdev_control();
  if (sockets->control < 0) {
    return socket_failed(config->device, -sockets->control, error);
  }
  if (!config->address) {
    sockets->other_count = harp_netdev_find_flux(device, sockets->others, PACKET_FILTER_OTHERS);
  }
  return 0;
}

void harp_packet_sockets_init(struct packet_sockets *sockets)
{
  memset(sockets, 0, sizeof(*sockets));
  sockets->control = -1;
  for (unsigned q = 0; q < PACKET_QUEUES; q++) {
    sockets->data[q] = sockets->arp[q] = -1;
  }
}

int harp_packet_sockets_open(struct packet_sockets *sockets, const struct harp_port_config *config,
                             const struct packet_selection *selection, char *error)
{
  const char *name = config->device;
  int rc = read_device(sockets, config, error);
  if (rc < 0) {
    return rc;
  }
  sockets->queue_count = config->queues;
  struct packet_filter filter = filter_of(sockets, config, selection);
  for (unsigned q = 0; q < sockets->queue_count && rc == 0; q++) {
    rc = open_socket(sockets, &sockets->data[q], name, &filter, data_kind(sockets), error);
    if (rc == 0 && harp_packet_sockets_have_arp(sockets)) {
      rc = open_socket(sockets, &sockets->arp[q], name, &filter, PACKET_FILTER_ARP, error);
    }
  }
  if (rc == 0 && harp_netdev_own_mac(&sockets->device, config)) {
    rc = listen_for_mac(sockets, filter.mac, name, error);
  }
  return rc;
}

/* --- Starting --- */

/* Begins to receive on a socket. ifindex 0: from all interfaces. */
static int bind_socket(int fd, int ifindex)
{
  struct sockaddr_ll here = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};
  return bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0 ? -errno : 0;
}

/* A group has no room for sockets of other processes, which would take frames away. Kernels before
 * 5.11 know no such limit, and only the first member of the structure. */
static int request_fanout(int fd, const struct fanout_args *request)
{
  enum { WITHOUT_LIMIT = offsetof(struct fanout_args, max_num_members) };
  if (setsockopt(fd, SOL_PACKET, PACKET_FANOUT, request, sizeof(*request)) == 0) {
    return 0;
  }
  bool old = errno == EINVAL;
  return old && setsockopt(fd, SOL_PACKET, PACKET_FANOUT, request, WITHOUT_LIMIT) == 0 ? 0 : -errno;
}

/* The kernel gives the first socket a unique group number; the other sockets join that group.
 * They join in the order of the queues, because the steering program returns an index in that
 * order. */
static int join_fanout(int fd, unsigned sockets, int *group)
{
  bool first = *group < 0;
  struct fanout_args request = {.type_flags = PACKET_FANOUT_CBPF, .max_num_members = sockets};
  if (first) {
    request.type_flags |= PACKET_FANOUT_FLAG_UNIQUEID;
  } else {
    request.id = (uint16_t)*group;
  }
  int rc = request_fanout(fd, &request);
  if (rc < 0) {
    return rc;
  }
  if (!first) {
    return 0;
  }
  int given = 0;
  socklen_t length = sizeof(given);
  if (getsockopt(fd, SOL_PACKET, PACKET_FANOUT, &given, &length) < 0) {
    return -errno;
  }
  *group = given & 0xffff;
  return harp_packet_fanout_steer(fd);
}

/* A socket can join a fanout group only after it is bound. */
int harp_packet_sockets_start(const struct packet_sockets *sockets, const char *name, char *error)
{
  int group = -1, ifindex = sockets->device.index;
  for (unsigned q = 0; q < sockets->queue_count; q++) {
    int fd = sockets->data[q];
    int rc = bind_socket(fd, sockets->other_count > 0 ? 0 : ifindex);
    if (rc == 0 && sockets->arp[q] >= 0) {
      rc = bind_socket(sockets->arp[q], ifindex);
    }
    if (rc < 0) {
      return setup_failed(name, rc, error);
    }
    rc = sockets->queue_count > 1 ? join_fanout(fd, sockets->queue_count, &group) : 0;
    if (rc < 0) {
      return harp_port_fail(error, rc,
                            "packet:%s: cannot steer frames to %u instances: %s; set "
                            "instances = 1",
                            name, sockets->queue_count, strerror(-rc));
    }
  }
  return 0;
}

/* --- Locking and closing --- */

static int lock(int fd)
{
  int on = 1;
  return fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof(on)) < 0 ? -errno : 0;
}

int harp_packet_sockets_lock(const struct packet_sockets *sockets)
{
  int rc = 0;
  for (unsigned q = 0; q < sockets->queue_count && rc == 0; q++) {
    rc = lock(sockets->data[q]);
    if (rc == 0) {
      rc = lock(sockets->arp[q]);
    }
  }
  return rc;
}

void harp_packet_sockets_close(const struct packet_sockets *sockets)
{
  for (unsigned q = 0; q < PACKET_QUEUES; q++) {
    harp_descriptor_close(sockets->data[q]);
    harp_descriptor_close(sockets->arp[q]);
  }
  harp_descriptor_close(sockets->control);
}
