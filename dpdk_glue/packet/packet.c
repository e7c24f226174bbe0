/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "packet:IFACE": AF_PACKET sockets on a kernel interface, one per queue.
 *
 * The kernel keeps the interface and also sees every frame. It does not answer for HARP, because
 * either HARP's address is not the kernel's, or silent listeners hold HARP's ports
 * (packet_ports.h). Needs CAP_NET_RAW. CAP_NET_ADMIN is only needed for receive buffers larger than
 * net.core.rmem_max.
 */
#include "dpdk_glue/packet/packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "dpdk_glue/fail.h"
#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/packet_filter.h"
#include "harp/counters.h"

enum {
  RECEIVE_BUFFER = 64 * 1024 * 1024, /* bytes; one window of segments with the kernel's overhead */
  SEND_BUFFER = 4 * 1024 * 1024,
};

static struct packet_port *packet_of(struct harp_port *port) { return (struct packet_port *)port; }

static struct packet_filter filter_of(const struct packet_port *packet)
{
  const struct harp_port_info *info = &packet->port.info;
  const struct packet_ports *ports = &packet->ports;
  struct packet_filter filter = {
      .address = info->address,
      .shared = info->shares_address,
      .ranges = ports->shared || ports->range_count ? ports->ranges : NULL,
      .range_count = ports->range_count,
      .ifindex = packet->ifindex,
      .others = packet->others,
      .other_count = packet->other_count,
  };
  memcpy(filter.mac, info->mac, sizeof(filter.mac));
  return filter;
}

static bool has_arp_sockets(const struct packet_port *packet)
{
  return packet->queue_count > 1 || packet->other_count > 0;
}

static enum packet_filter_kind data_kind(const struct packet_port *packet)
{
  return has_arp_sockets(packet) ? PACKET_FILTER_IPV4 : PACKET_FILTER_ALL;
}

/* The kernel doubles the requested size. Without CAP_NET_ADMIN the limit is net.core.rmem_max. */
static void set_buffers(struct packet_port *packet, int fd)
{
  int receive = RECEIVE_BUFFER / 2, send = SEND_BUFFER / 2;
  socklen_t length = sizeof(packet->receive_buffer);
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof(receive)) < 0)
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof(receive));
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof(send)) < 0)
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof(send));
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &packet->receive_buffer, &length);
  packet->shallow = packet->receive_buffer < RECEIVE_BUFFER;
}

static int socket_failed(const char *name, int code, char *error)
{
  if (code == EPERM || code == EACCES)
    return harp_port_fail(error, -EPERM,
                          "packet:%s: not allowed to open a packet socket; give the process "
                          "CAP_NET_RAW (run as root; docker run --cap-add NET_RAW; in a pod "
                          "securityContext.capabilities.add: [NET_RAW])",
                          name);
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

/* Opens a socket that receives nothing until it is bound. Protocol 0 keeps it unbound until then,
 * so it never queues a frame that the filter would drop. */
static int open_socket(struct packet_port *packet, const char *name, enum packet_filter_kind kind,
                       char *error)
{
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return socket_failed(name, errno, error);
  struct packet_filter filter = filter_of(packet);
  int on = 1;
  int rc = harp_packet_filter_attach(fd, &filter, kind);
  if (rc == 0 && kind != PACKET_FILTER_ARP) {
    rc = setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) < 0 ? -errno : 0;
    set_buffers(packet, fd);
  }
  if (rc < 0) {
    close(fd);
    return setup_failed(name, rc, error);
  }
  return fd;
}

/* Begins to receive on a socket. ifindex 0: from all interfaces. */
static int bind_socket(int fd, int ifindex)
{
  struct sockaddr_ll here = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};
  return bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0 ? -errno : 0;
}

/* The kernel gives the first socket a unique group number; the other sockets join that group.
 * They join in the order of the queues, because the steering program returns an index in that
 * order. */
static int join_fanout(struct packet_port *packet, int fd, int *group)
{
  int request = PACKET_FANOUT_CBPF << 16;
  bool first = *group < 0;
  request |= first ? PACKET_FANOUT_FLAG_UNIQUEID << 16 : *group;
  if (setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &request, sizeof(request)) < 0)
    return -errno;
  if (!first)
    return 0;
  int given = 0;
  socklen_t length = sizeof(given);
  if (getsockopt(fd, SOL_PACKET, PACKET_FANOUT, &given, &length) < 0)
    return -errno;
  *group = given & 0xffff;
  return harp_packet_fanout_steer(fd);
}

static bool watch(int epoll_fd, int fd)
{
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Gives each queue a second socket, and one descriptor that watches both. */
static int open_pairs(struct packet_port *packet, const char *name, char *error)
{
  for (unsigned q = 0; q < packet->queue_count; q++) {
    struct packet_queue *queue = &packet->queues[q];
    queue->arp_fd = open_socket(packet, name, PACKET_FILTER_ARP, error);
    if (queue->arp_fd < 0)
      return queue->arp_fd;
    queue->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (queue->epoll_fd < 0 || !watch(queue->epoll_fd, queue->fd) ||
        !watch(queue->epoll_fd, queue->arp_fd))
      return harp_port_fail(error, -errno,
                            "packet:%s: cannot make an epoll descriptor: %s; raise "
                            "the limit of open files (ulimit -n)",
                            name, strerror(errno));
  }
  return 0;
}

static int open_queues(struct packet_port *packet, const char *name, char *error)
{
  size_t size = packet->queue_count * sizeof(*packet->queues);
  packet->queues = aligned_alloc(_Alignof(struct packet_queue), size);
  if (!packet->queues)
    return harp_port_fail(error, -ENOMEM, "packet:%s: out of memory", name);
  memset(packet->queues, 0, size);
  for (unsigned q = 0; q < packet->queue_count; q++)
    packet->queues[q].fd = packet->queues[q].arp_fd = packet->queues[q].epoll_fd = -1;
  for (unsigned q = 0; q < packet->queue_count; q++) {
    struct packet_queue *queue = &packet->queues[q];
    if (harp_packet_rx_init(queue) < 0)
      return harp_port_fail(error, -ENOMEM, "packet:%s: out of memory", name);
    harp_packet_tx_init(queue, packet->ifindex);
    queue->fd = open_socket(packet, name, data_kind(packet), error);
    if (queue->fd < 0)
      return queue->fd;
  }
  return has_arp_sockets(packet) ? open_pairs(packet, name, error) : 0;
}

static void close_fd(int fd)
{
  if (fd >= 0)
    close(fd);
}

static void close_sockets(const struct packet_port *packet)
{
  for (unsigned q = 0; packet->queues && q < packet->queue_count; q++) {
    const struct packet_queue *queue = &packet->queues[q];
    close_fd(queue->fd);
    close_fd(queue->arp_fd);
    close_fd(queue->epoll_fd);
  }
}

static void packet_close(struct harp_port *port)
{
  struct packet_port *packet = packet_of(port);
  close_sockets(packet);
  /* The listeners must outlive the packet sockets; otherwise the kernel would answer HARP's
   * peers. */
  harp_packet_ports_close(&packet->ports);
  for (unsigned q = 0; packet->queues && q < packet->queue_count; q++)
    harp_packet_rx_free(&packet->queues[q]);
  free(packet->queues);
  free(packet);
}

/* Otherwise a child that outlives its parent would keep the kernel silent, and peers would wait
 * for a process that is gone. */
static void packet_forget(struct harp_port *port)
{
  const struct packet_port *packet = packet_of(port);
  close_sockets(packet);
  harp_packet_ports_forget(&packet->ports);
}

static void describe(struct packet_port *packet, const struct harp_netdev *device,
                     const struct harp_port_config *config)
{
  struct harp_port_info *info = &packet->port.info;
  harp_netdev_describe(device, config, info);
  info->offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_TSO | HARP_OFFLOAD_RX_CHECKSUM |
                   HARP_OFFLOAD_LRO;
  info->max_frame = device->gso_max - 1;
}

static void summarize(struct packet_port *packet, const char *name)
{
  struct harp_port_info *info = &packet->port.info;
  char address[INET_ADDRSTRLEN], shallow[64] = "";
  inet_ntop(AF_INET, &info->address, address, sizeof(address));
  if (packet->shallow)
    snprintf(shallow, sizeof(shallow), ", receive buffer %d KiB (CAP_NET_ADMIN: 64 MiB)",
             packet->receive_buffer >> 10);
  snprintf(info->summary, sizeof(info->summary), "packet %s, %s/%u %s, mtu %u, %u queue%s%s", name,
           address, info->prefix, info->shares_address ? "(the kernel's)" : "(its own)", info->mtu,
           packet->queue_count, packet->queue_count == 1 ? "" : "s", shallow);
}

/* Makes the NIC accept HARP's own MAC address. The setting lasts as long as the socket. */
static int listen_for_mac(struct packet_port *packet, const char *name, char *error)
{
  struct packet_mreq request = {
      .mr_ifindex = packet->ifindex, .mr_type = PACKET_MR_UNICAST, .mr_alen = 6};
  memcpy(request.mr_address, packet->port.info.mac, 6);
  if (setsockopt(packet->queues[0].fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request,
                 sizeof(request)) < 0)
    return harp_port_fail(error, -errno,
                          "packet:%s: the interface does not accept a second MAC "
                          "address: %s; remove mac",
                          name, strerror(errno));
  return 0;
}

static int set_up(struct packet_port *packet, const struct harp_port_config *config, char *error)
{
  struct harp_netdev device;
  int rc = harp_netdev_read("packet", config->device, &device, error);
  if (rc == 0)
    rc = harp_netdev_check("packet", config->device, &device, config, error);
  if (rc < 0)
    return rc;
  packet->ifindex = device.index;
  snprintf(packet->name, sizeof(packet->name), "%.15s", config->device);
  packet->queue_count = config->queues;
  describe(packet, &device, config);
  if (packet->port.info.shares_address)
    packet->other_count = harp_netdev_find_flux(&device, packet->others, PACKET_FILTER_OTHERS);
  harp_packet_ports_init(&packet->ports, !config->address, packet->port.info.address,
                         config->queues, config->ports_first, config->ports_last);
  rc = open_queues(packet, config->device, error);
  if (rc == 0 && harp_netdev_own_mac(&device, config))
    rc = listen_for_mac(packet, config->device, error);
  packet->port.info.receive_depth = (uint32_t)packet->receive_buffer;
  if (rc == 0)
    summarize(packet, config->device);
  return rc;
}

/* A socket can join a fanout group only after it is bound. */
static int packet_start(struct harp_port *port, char *error)
{
  struct packet_port *packet = packet_of(port);
  int group = -1;
  for (unsigned q = 0; q < packet->queue_count; q++) {
    const struct packet_queue *queue = &packet->queues[q];
    int rc = bind_socket(queue->fd, packet->other_count > 0 ? 0 : packet->ifindex);
    if (rc == 0 && queue->arp_fd >= 0)
      rc = bind_socket(queue->arp_fd, packet->ifindex);
    if (rc < 0)
      return setup_failed(packet->name, rc, error);
    rc = packet->queue_count > 1 ? join_fanout(packet, queue->fd, &group) : 0;
    if (rc < 0)
      return harp_port_fail(error, rc,
                            "packet:%s: cannot steer frames to %u instances: %s; set "
                            "instances = 1",
                            packet->name, packet->queue_count, strerror(-rc));
  }
  return 0;
}

static int packet_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  struct packet_port *packet = calloc(1, sizeof(*packet));
  if (!packet)
    return harp_port_fail(error, -ENOMEM, "packet:%.40s: out of memory", config->device);
  packet->port.ops = &harp_port_packet;
  int rc = set_up(packet, config, error);
  if (rc < 0) {
    packet_close(&packet->port);
    return rc;
  }
  *port = &packet->port;
  return 0;
}

static int packet_descriptor(struct harp_port *port, unsigned number)
{
  const struct packet_queue *queue = &packet_of(port)->queues[number];
  return queue->epoll_fd >= 0 ? queue->epoll_fd : queue->fd;
}

/* The descriptor is level-triggered, so no frame is missed. But the poller must not sleep while
 * the queue holds small frames that the device had no room for. */
static int packet_arm(struct harp_port *port, unsigned number, bool asleep)
{
  struct packet_queue *queue = &packet_of(port)->queues[number];
  if (!asleep) {
    /* ARP may have woken the poller. The worker does not hold the poll lock here. */
    atomic_store_explicit(&queue->arp_in, 0, memory_order_relaxed);
    return 0;
  }
  harp_packet_flush(port, number);
  return queue->held_count > 0;
}

static int attach_filters(const struct packet_port *packet)
{
  struct packet_filter filter = filter_of(packet);
  int rc = 0;
  for (unsigned q = 0; q < packet->queue_count && rc == 0; q++)
    rc = harp_packet_filter_attach(packet->queues[q].fd, &filter, data_kind(packet));
  return rc;
}

static int packet_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct packet_port *packet = packet_of(port);
  bool changed;
  int rc = harp_packet_ports_take(&packet->ports, queue, wanted, local, &changed);
  if (changed) {
    int attached = attach_filters(packet);
    if (attached < 0 && rc == 0)
      harp_packet_ports_give(&packet->ports, *local);
    rc = rc < 0 ? rc : attached;
  }
  return rc;
}

static void packet_release(struct harp_port *port, unsigned queue, uint16_t local)
{
  harp_packet_ports_give(&packet_of(port)->ports, local);
}

static int packet_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us)
{
  return 0; /* sendmsg has copied the data already */
}

static void packet_count(struct harp_port *port, unsigned number, uint64_t *counters)
{
  struct packet_queue *queue = &packet_of(port)->queues[number];
  struct tpacket_stats lost = {0}; /* counts since the last call */
  socklen_t length = sizeof(lost);
  if (getsockopt(queue->fd, SOL_PACKET, PACKET_STATISTICS, &lost, &length) == 0)
    queue->counts.rx_lost += lost.tp_drops;
  counters[HARP_COUNTER_tx_copied_bytes] += queue->counts.tx_copied;
  counters[HARP_COUNTER_port_tx_full] += queue->counts.tx_full;
  counters[HARP_COUNTER_port_tx_errors] += queue->counts.tx_errors;
  counters[HARP_COUNTER_port_rx_lost] += queue->counts.rx_lost;
  memset(&queue->counts, 0, sizeof(queue->counts));
}

static bool packet_has_carrier(struct harp_port *port)
{
  return harp_netdev_has_carrier(packet_of(port)->ifindex);
}

const struct harp_port_ops harp_port_packet = {
    .scheme = "packet",
    .open = packet_open,
    .start = packet_start,
    .close = packet_close,
    .forget = packet_forget,
    .receive = harp_packet_receive,
    .transmit = harp_packet_transmit,
    .flush = harp_packet_flush,
    .descriptor = packet_descriptor,
    .arm = packet_arm,
    .reserve = packet_reserve,
    .release = packet_release,
    .reclaim = packet_reclaim,
    .has_carrier = packet_has_carrier,
    .count = packet_count,
};
