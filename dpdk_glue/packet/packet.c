/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "packet:IFACE": AF_PACKET sockets on a kernel interface, one per queue.
 *
 * The kernel keeps the interface and also sees every frame. It does not answer for HARP, because
 * either HARP's address is not the kernel's, or silent listeners hold HARP's ports
 * (packet_ports.h). Needs CAP_NET_RAW, or an agent on the node that opens the sockets.
 * CAP_NET_ADMIN is only needed for receive buffers larger than net.core.rmem_max.
 */
#include "dpdk_glue/packet/packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "harp/counters.h"

static struct packet_port *packet_of(struct harp_port *port) { return (struct packet_port *)port; }

/* The ports whose frames HARP receives. On its own address these are all, or those configured. */
static struct packet_selection selection_of(const struct packet_ports *ports)
{
  bool some = ports->shared || ports->range_count;
  return (struct packet_selection){some ? ports->ranges : NULL, ports->range_count};
}

/* One descriptor watches both sockets of a queue. */
static int open_epoll(struct packet_queue *queue, const char *name, char *error)
{
  queue->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (queue->epoll_fd < 0 || !harp_descriptor_watch(queue->epoll_fd, queue->fd) ||
      !harp_descriptor_watch(queue->epoll_fd, queue->arp_fd)) {
    return harp_port_fail(error, -errno,
                          "packet:%s: cannot make an epoll descriptor: %s; raise "
                          "the limit of open files (ulimit -n)",
                          name, strerror(errno));
  }
  return 0;
}

static int make_queues(struct packet_port *packet, const char *name, char *error)
{
  const struct packet_sockets *sockets = &packet->sockets;
  size_t size = sockets->queue_count * sizeof(*packet->queues);
  packet->queues = aligned_alloc(_Alignof(struct packet_queue), size);
  if (!packet->queues) {
    return harp_port_fail(error, -ENOMEM, "packet:%s: out of memory", name);
  }
  memset(packet->queues, 0, size);
  packet->queue_count = sockets->queue_count;
  for (unsigned q = 0; q < packet->queue_count; q++) {
    packet->queues[q].fd = sockets->data[q];
    packet->queues[q].arp_fd = sockets->arp[q];
    packet->queues[q].epoll_fd = -1;
  }
  int rc = 0;
  for (unsigned q = 0; q < packet->queue_count && rc == 0; q++) {
    struct packet_queue *queue = &packet->queues[q];
    if (harp_packet_rx_init(queue) < 0) {
      return harp_port_fail(error, -ENOMEM, "packet:%s: out of memory", name);
    }
    harp_packet_tx_init(&queue->tx, &sockets->device, queue->fd);
    if (queue->arp_fd >= 0) {
      rc = open_epoll(queue, name, error);
    }
  }
  return rc;
}

static void close_descriptors(const struct packet_port *packet)
{
  for (unsigned q = 0; packet->queues && q < packet->queue_count; q++) {
    harp_descriptor_close(packet->queues[q].epoll_fd);
  }
  harp_packet_sockets_close(&packet->sockets);
}

static void packet_close(struct harp_port *port)
{
  struct packet_port *packet = packet_of(port);
  close_descriptors(packet);
  /* The listeners must outlive the packet sockets; otherwise the kernel would answer HARP's
   * peers. */
  harp_packet_ports_close(&packet->ports);
  harp_agent_close(&packet->agent);
  for (unsigned q = 0; packet->queues && q < packet->queue_count; q++) {
    harp_packet_rx_free(&packet->queues[q]);
  }
  free(packet->queues);
  free(packet);
}

/* Otherwise a child that outlives its parent would keep the kernel silent, and peers would wait
 * for a process that is gone. */
static void packet_forget(struct harp_port *port)
{
  const struct packet_port *packet = packet_of(port);
  close_descriptors(packet);
  harp_packet_ports_forget(&packet->ports);
  harp_agent_close(&packet->agent);
}

static void describe(struct packet_port *packet, const struct harp_port_config *config)
{
  const struct harp_netdev *device = &packet->sockets.device;
  struct harp_port_info *info = &packet->port.info;
  harp_netdev_describe(device, config, info);
  info->offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_TSO | HARP_OFFLOAD_RX_CHECKSUM |
                   HARP_OFFLOAD_LRO;
  info->max_frame = harp_packet_tx_longest(device);
  info->receive_depth = (uint32_t)packet->sockets.receive_buffer;
}

static void summarize(struct packet_port *packet, const char *name)
{
  struct harp_port_info *info = &packet->port.info;
  char address[INET_ADDRSTRLEN], shallow[64] = "";
  inet_ntop(AF_INET, &info->address, address, sizeof(address));
  int buffer = packet->sockets.receive_buffer;
  if (buffer < PACKET_RECEIVE_BUFFER) {
    snprintf(shallow, sizeof(shallow), ", receive buffer %d KiB (CAP_NET_ADMIN: 64 MiB)",
             buffer >> 10);
  }
  snprintf(info->summary, sizeof(info->summary), "packet %s, %s/%u %s, mtu %u, %u queue%s%s%s",
           name, address, info->prefix, info->shares_address ? "(the kernel's)" : "(its own)",
           info->mtu, packet->queue_count, packet->queue_count == 1 ? "" : "s", shallow,
           packet->agent.path[0] ? ", by the agent" : "");
}

static void init_ports(struct packet_port *packet, const struct harp_port_config *config)
{
  harp_packet_ports_init(&packet->ports, !config->address, config->address, config->queues,
                         config->ports_first, config->ports_last);
}

/* The agent opens the sockets where it runs; otherwise this process does. */
static int open_sockets(struct packet_port *packet, const struct harp_port_config *config,
                        char *error)
{
  if (config->agent) {
    return harp_packet_agent_open(packet, config, error);
  }
  struct packet_selection selection = selection_of(&packet->ports);
  return harp_packet_sockets_open(&packet->sockets, config, &selection, error);
}

static int set_up(struct packet_port *packet, const struct harp_port_config *config, char *error)
{
  packet->config = *config;
  packet->config.device = packet->config.agent = NULL;
  snprintf(packet->name, sizeof(packet->name), "%.15s", config->device);
  init_ports(packet, config);
  int rc = open_sockets(packet, config, error);
  if (rc < 0) {
    return rc;
  }
  describe(packet, config);
  packet->ports.address = packet->port.info.address;
  rc = make_queues(packet, config->device, error);
  if (rc == 0) {
    summarize(packet, config->device);
  }
  return rc;
}

/* The agent has started its sockets, because it locks their filters. */
static int packet_start(struct harp_port *port, char *error)
{
  struct packet_port *packet = packet_of(port);
  return packet->agent.path[0] ? 0
                               : harp_packet_sockets_start(&packet->sockets, packet->name, error);
}

static int packet_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  struct packet_port *packet = calloc(1, sizeof(*packet));
  if (!packet) {
    return harp_port_fail(error, -ENOMEM, "packet:%.40s: out of memory", config->device);
  }
  packet->port.ops = &harp_port_packet;
  harp_packet_sockets_init(&packet->sockets);
  harp_agent_init(&packet->agent);
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

static int packet_transmit(struct harp_port *port, unsigned number,
                           const struct harp_tx_frame *frame)
{
  struct packet_port *packet = packet_of(port);
  if (atomic_load_explicit(&packet->lost_address, memory_order_relaxed)) {
    return -EADDRNOTAVAIL;
  }
  return harp_packet_tx_send(&packet->queues[number].tx, frame);
}

static void packet_flush(struct harp_port *port, unsigned number)
{
  harp_packet_tx_flush(&packet_of(port)->queues[number].tx);
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
  return harp_packet_tx_flush(&queue->tx) == -EAGAIN;
}

static int packet_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct packet_port *packet = packet_of(port);
  bool changed;
  int rc = harp_packet_ports_take(&packet->ports, queue, wanted, local, &changed);
  if (changed) {
    struct packet_selection selection = selection_of(&packet->ports);
    int selected = harp_packet_sockets_select(&packet->sockets, &packet->config, &selection);
    rc = harp_packet_ports_confirm(&packet->ports, *local, rc, selected);
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
  if (getsockopt(queue->fd, SOL_PACKET, PACKET_STATISTICS, &lost, &length) == 0) {
    queue->rx_lost += lost.tp_drops;
  }
  counters[HARP_COUNTER_port_rx_lost] += queue->rx_lost;
  queue->rx_lost = 0;
  harp_packet_tx_count(&queue->tx, counters);
}

static bool packet_has_carrier(struct harp_port *port)
{
  struct packet_port *packet = packet_of(port);
  const struct packet_sockets *sockets = &packet->sockets;
  if (harp_netdev_lost_address(sockets->control, &sockets->device, &port->info)) {
    atomic_store_explicit(&packet->lost_address, true, memory_order_relaxed);
  }
  return harp_netdev_has_carrier(sockets->control, sockets->device.index);
}

const struct harp_port_ops harp_port_packet = {
    .scheme = "packet",
    .open = packet_open,
    .start = packet_start,
    .close = packet_close,
    .forget = packet_forget,
    .receive = harp_packet_receive,
    .transmit = packet_transmit,
    .flush = packet_flush,
    .descriptor = packet_descriptor,
    .arm = packet_arm,
    .reserve = packet_reserve,
    .release = packet_release,
    .reclaim = packet_reclaim,
    .has_carrier = packet_has_carrier,
    .count = packet_count,
};
