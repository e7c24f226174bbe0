/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "xdp:IFACE": AF_XDP sockets on a kernel interface.
 *
 * The kernel keeps the interface. An XDP program gives the frames of HARP's local ports to HARP's
 * sockets before the kernel sees them, and passes all others to the kernel: ARP, ICMP and the
 * kernel's own TCP. A packet socket hears the ARP and ICMP packets that concern HARP. On a shared
 * address, silent listeners hold HARP's local ports, as for "packet:" (packet_ports.h).
 *
 * One process has the AF_XDP sockets of an interface. The port of each further process is a packet
 * port, unless the device has options. The program passes the frames of their local ports.
 *
 * Needs CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW when it opens, and memory that may be locked; or an
 * agent on the node that opens the sockets.
 */
#include "dpdk_glue/xdp/xdp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/kernel/packet_filter.h"
#include "harp/counters.h"

enum { TCP_IP_HEADERS = IP_HEADER + TCP_HEADER + 12 /* with timestamps */ };

/* --- The interface --- */

static int check_queues(const struct xdp_port *xdp, const struct harp_port_config *config,
                        unsigned queues, char *error)
{
  const char *name = xdp->spec.interface;
  if (config->queues > 1) {
    return harp_port_fail(
        error, -EINVAL, "xdp:%s: instances = %u: an XDP device has one instance; set instances = 1",
        name, config->queues);
  }
  if (queues > XDP_NIC_QUEUES) {
    return harp_port_fail(error, -EINVAL,
                          "xdp:%s: the interface has %u queues, and HARP takes at most %d; "
                          "ethtool -L %s combined %d",
                          name, queues, XDP_NIC_QUEUES, name, XDP_NIC_QUEUES);
  }
  return 0;
}

/* --- Sockets --- */

static int socket_failed(const struct xdp_port *xdp, int rc, const char *step, char *error)
{
  const char *name = xdp->spec.interface;
  switch (rc) {
  case -EPERM:
    return harp_port_fail(error, rc,
                          "xdp:%s: may not %s: %s; add CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW, or "
                          "use packet:%s, which needs CAP_NET_RAW only",
                          name, step, strerror(-rc), name);
  case -ENOBUFS:
    return harp_port_fail(error, rc,
                          "xdp:%s: cannot %s: %s; raise the limit of locked memory (ulimit -l) by "
                          "%d MiB, or add CAP_IPC_LOCK",
                          name, step, strerror(-rc), (int)(xdp->umem.bytes >> 20));
  case -EBUSY:
    return harp_port_fail(
        error, rc,
        "xdp:%s: cannot %s: another process has an AF_XDP socket on the interface; "
        "end it, remove the options of xdp:%s, or use packet:%s",
        name, step, name, name);
  case -EAFNOSUPPORT:
    return harp_port_fail(error, rc,
                          "xdp:%s: this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use "
                          "packet:%s",
                          name, name);
  default:
    return harp_port_fail(error, rc, "xdp:%s: cannot %s: %s%s", name, step, strerror(-rc),
                          xdp->spec.mode == XDP_MODE_ZEROCOPY
                              ? "; the driver may not have zero-copy: set mode=auto"
                              : "; use packet: if this stays");
  }
}

/* Opens a socket for each queue of the interface. */
static int open_sockets(struct xdp_port *xdp, unsigned queues, char *error)
{
  for (unsigned q = 0; q < queues; q++) {
    struct xdp_socket *xsk = &xdp->sockets[q];
    const struct xdp_socket *first = q ? &xdp->sockets[0] : NULL;
    const char *step;
    xdp->socket_count = q + 1;
    int rc = harp_xdp_socket_open(xsk, &xdp->umem, first, xdp->device.index, q, xdp->spec.mode,
                                  &step);
    if (rc < 0) {
      return socket_failed(xdp, rc, step, error);
    }
  }
  return 0;
}

/* Loads the program. A frame of several buffers may reach it only if the sockets take such frames:
 * without them, a virtual interface makes its peer cut all segments. */
static int open_steering(struct xdp_port *xdp, char *error)
{
  const struct harp_port_info *info = &xdp->port.info;
  struct xdp_steering *steering = &xdp->steering;
  int rc = harp_xdp_steering_open(steering, xdp->spec.interface, info->address, info->mac,
                                  xdp->socket_count, xdp->sockets[0].several, error);
  for (unsigned q = 0; q < xdp->socket_count && rc == 0; q++) {
    rc = harp_xdp_steering_add(steering, q, xdp->sockets[q].fd);
    if (rc < 0) {
      return socket_failed(xdp, rc, "register a socket with the XDP program", error);
    }
  }
  return rc;
}

/* The packet socket receives ARP, ICMP, and frames for these TCP ports. The program takes the
 * latter, but not those from other processes of this host. 0, or a negative errno. */
static int select_others(const struct xdp_port *xdp, const struct packet_range *ranges,
                         unsigned count)
{
  const struct harp_port_info *info = &xdp->port.info;
  struct packet_filter filter = {
      .address = info->address,
      .shared = info->shares_address,
      .ranges = ranges,
      .range_count = count,
      .ifindex = xdp->device.index,
  };
  memcpy(filter.mac, info->mac, sizeof(filter.mac));
  return harp_packet_filter_attach(xdp->other_fd, &filter, PACKET_FILTER_ALL);
}

/* held: the local ports that HARP has from the start. */
static int open_other(struct xdp_port *xdp, struct packet_range held, char *error)
{
  xdp->other_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (xdp->other_fd < 0) {
    return socket_failed(xdp, -errno, "open a packet socket for ARP", error);
  }
  int rc = select_others(xdp, &held, held.last > 0);
  harp_packet_set_buffers(xdp->other_fd);
  return rc < 0 ? socket_failed(xdp, rc, "filter the packet socket for ARP", error) : 0;
}

static int open_epoll(struct xdp_port *xdp, char *error)
{
  xdp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  bool good = xdp->epoll_fd >= 0 && harp_descriptor_watch(xdp->epoll_fd, xdp->other_fd);
  for (unsigned q = 0; q < xdp->socket_count && good; q++) {
    good = harp_descriptor_watch(xdp->epoll_fd, xdp->sockets[q].fd);
  }
  return good ? 0
              : harp_port_fail(error, -errno,
                               "xdp:%s: cannot make an epoll descriptor: %s; raise the limit of "
                               "open files (ulimit -n)",
                               xdp->spec.interface, strerror(errno));
}

/* --- Open and close --- */

static void describe(struct xdp_port *xdp, const struct harp_port_config *config)
{
  struct harp_port_info *info = &xdp->port.info;
  harp_netdev_describe(&xdp->device, config, info);
  xdp->local_sender = !xdp->device.pci_path[0];
  info->offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_TSO | HARP_OFFLOAD_RX_CHECKSUM;
}

/* The payload that the chunks of a queue hold, if all frames are as long as they may be. All frames
 * of a connection arrive on one queue. */
static uint32_t receive_depth(const struct xdp_port *xdp)
{
  uint32_t mtu = xdp->port.info.mtu, room = xdp->umem.chunk - XDP_HEADROOM;
  uint32_t chunks = (mtu + ETH_HEADER + room - 1) / room;
  return xdp->umem.rx_chunks / chunks * (mtu - TCP_IP_HEADERS);
}

static void summarize(struct xdp_port *xdp)
{
  struct harp_port_info *info = &xdp->port.info;
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &info->address, address, sizeof(address));
  snprintf(info->summary, sizeof(info->summary), "xdp %s, %s/%u %s, mtu %u, %u queue%s, %s%s",
           xdp->spec.interface, address, info->prefix,
           info->shares_address ? "(the kernel's)" : "(its own)", info->mtu, xdp->socket_count,
           xdp->socket_count == 1 ? "" : "s", xdp->sockets[0].zero_copy ? "zero-copy" : "copy mode",
           xdp->agent.path[0] ? ", by the agent" : "");
}

/* A frame that is longer than a chunk needs several of them. */
static int check_mtu(const struct xdp_port *xdp, char *error)
{
  uint32_t most = xdp->umem.chunk - XDP_HEADROOM - ETH_HEADER;
  if (xdp->port.info.mtu <= most || xdp->sockets[0].several) {
    return 0;
  }
  return harp_port_fail(error, -EINVAL,
                        "xdp:%s: mtu = %u needs frames of several buffers (Linux 6.6, and in "
                        "zero-copy mode a driver that has them); set mtu = %u on all hosts, or use "
                        "packet:%s",
                        xdp->spec.interface, xdp->port.info.mtu, most, xdp->spec.interface);
}

/* The ports that HARP has from the start: on an address of its own all that it may use, and those
 * that the agent grants (shared). last 0: none. */
static struct packet_range held_at_start(const struct harp_port_config *config, bool shared)
{
  struct packet_range range = {0};
  if (config->address || shared) {
    range.first = config->ports_first;
    range.last = range.first ? config->ports_last : UINT16_MAX;
  }
  return range;
}

static int read_device(struct xdp_port *xdp, const struct harp_port_config *config, char *error)
{
  const char *name = xdp->spec.interface;
  int rc = harp_netdev_read("xdp", name, &xdp->device, error);
  if (rc == 0) {
    rc = harp_netdev_check("xdp", name, &xdp->device, config, error);
  }
  if (rc == 0 && xdp->device.bond) {
    rc = harp_port_fail(error, -EOPNOTSUPP,
                        "xdp:%s: AF_XDP sockets of a bond receive nothing; use packet:%s", name,
                        name);
  }
  if (rc == 0 && harp_netdev_own_mac(&xdp->device, config)) {
    rc = harp_port_fail(error, -EINVAL, "xdp:%s: mac cannot be used; remove it", name);
  }
  if (rc < 0) {
    return rc;
  }
  xdp->control_fd = harp_netdev_control();
  if (xdp->control_fd < 0) {
    return socket_failed(xdp, xdp->control_fd, "open a socket for the interface's state", error);
  }
  return 0;
}

/* Opens everything that takes a privilege. */
static int open_here(struct xdp_port *xdp, const struct harp_port_config *config, bool shared,
                     char *error)
{
  unsigned queues = harp_netdev_queues(xdp->spec.interface);
  int rc = check_queues(xdp, config, queues, error);
  if (rc < 0) {
    return rc;
  }
  uint32_t frame = xdp->port.info.mtu + (uint32_t)ETH_HEADER;
  if (harp_xdp_umem_make(&xdp->umem, frame, queues, shared) < 0) {
    return harp_port_fail(error, -ENOMEM, "xdp:%s: out of memory", xdp->spec.interface);
  }
  rc = open_sockets(xdp, queues, error);
  if (rc == 0) {
    rc = check_mtu(xdp, error);
  }
  if (rc == 0) {
    rc = open_steering(xdp, error);
  }
  struct packet_range held = held_at_start(config, shared);
  if (rc == 0) {
    rc = open_other(xdp, held, error);
  }
  if (rc == 0 && config->address) {
    harp_xdp_steering_hold(&xdp->steering, held.first, held.last);
  }
  return rc;
}

static void init_ports(struct xdp_port *xdp, const struct harp_port_config *config)
{
  bool by_agent = xdp->agent.path[0], shared = !config->address;
  harp_packet_ports_init(&xdp->ports, shared, xdp->port.info.address, config->queues,
                         by_agent && shared ? xdp->agent.ports_first : config->ports_first,
                         by_agent && shared ? xdp->agent.ports_last : config->ports_last);
  xdp->ports.agent = by_agent ? &xdp->agent : NULL;
}

/* shared: another process takes the port over. */
static int set_up(struct xdp_port *xdp, const struct harp_port_config *config, bool shared,
                  char *error)
{
  int rc = harp_xdp_spec_read(&xdp->spec, config->device, error);
  if (rc < 0) {
    return rc;
  }
  rc = config->agent ? harp_xdp_agent_open(xdp, config, error) : read_device(xdp, config, error);
  if (rc < 0) {
    return rc;
  }
  describe(xdp, config);
  rc = config->agent ? 0 : open_here(xdp, config, shared, error);
  if (rc == 0) {
    rc = open_epoll(xdp, error);
  }
  if (rc < 0) {
    return rc;
  }
  init_ports(xdp, config);
  if (!shared) {
    harp_xdp_tx_init(xdp); /* the process that takes over decides who sends */
  }
  xdp->port.info.max_frame = xdp->has_vnet ? harp_packet_tx_longest(&xdp->device)
                                           : (uint32_t)HARP_FRAME_MAX;
  xdp->port.info.receive_depth = receive_depth(xdp);
  summarize(xdp);
  return 0;
}

/* Gives up everything but the memory and the local ports. */
static void close_sockets(struct xdp_port *xdp)
{
  harp_xdp_steering_close(&xdp->steering);
  for (unsigned q = 0; q < xdp->socket_count; q++) {
    harp_xdp_socket_close(&xdp->sockets[q]);
  }
  harp_descriptor_close(xdp->other_fd);
  harp_descriptor_close(xdp->epoll_fd);
  harp_descriptor_close(xdp->control_fd);
}

static void xdp_close(struct harp_port *port)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  close_sockets(xdp);
  harp_xdp_umem_free(&xdp->umem);
  harp_packet_ports_close(&xdp->ports); /* last: until now they keep the kernel silent */
  harp_agent_close(&xdp->agent);
  free(xdp);
}

/* The child has no copy of the sockets' memory (MADV_DONTFORK). */
static void xdp_forget(struct harp_port *port)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  close_sockets(xdp);
  harp_packet_ports_forget(&xdp->ports);
  harp_agent_close(&xdp->agent);
}

static int open_port(struct harp_port **port, const struct harp_port_config *config, bool shared,
                     char *error)
{
  struct xdp_port *xdp = calloc(1, sizeof(*xdp));
  if (!xdp) {
    return harp_port_fail(error, -ENOMEM, "xdp:%.40s: out of memory", config->device);
  }
  xdp->port.ops = &harp_port_xdp;
  xdp->other_fd = xdp->epoll_fd = xdp->control_fd = xdp->umem.file = -1;
  harp_agent_init(&xdp->agent);
  harp_xdp_steering_init(&xdp->steering);
  int rc = set_up(xdp, config, shared, error);
  if (rc < 0) {
    xdp_close(&xdp->port);
    return rc;
  }
  *port = &xdp->port;
  return 0;
}

static int open_packet(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  int rc = harp_port_packet.open(port, config, error);
  if (rc == 0) {
    char *summary = (*port)->info.summary;
    size_t used = strlen(summary);
    snprintf(summary + used, sizeof((*port)->info.summary) - used,
             ", because the AF_XDP sockets are for another process");
  }
  return rc;
}

static int xdp_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  bool plain = !strchr(config->device, ',');
  int rc = plain && config->guest ? -EBUSY : open_port(port, config, false, error);
  return rc == -EBUSY && plain ? open_packet(port, config, error) : rc;
}

int harp_xdp_open_shared(struct harp_port **port, const struct harp_port_config *config,
                         char *error)
{
  return open_port(port, config, true, error);
}

/* Whether the sockets get what the program takes, where the kernel or the driver runs it. */
static int check_native(const struct xdp_port *xdp, char *error)
{
  const char *name = xdp->spec.interface;
  if (xdp->steering.native) {
    return 0;
  }
  if (xdp->sockets[0].zero_copy) {
    return harp_port_fail(error, -EOPNOTSUPP,
                          "xdp:%s: the driver has zero-copy sockets, but does not run the XDP "
                          "program; set device = xdp:%s,mode=copy",
                          name, name);
  }
  if (!xdp->sockets[0].several) {
    return harp_port_fail(error, -EOPNOTSUPP,
                          "xdp:%s: the driver does not run XDP programs, and this kernel has no "
                          "frames of several buffers (Linux 6.6); use packet:%s",
                          name, name);
  }
  return 0;
}

static int start_here(struct xdp_port *xdp, char *error)
{
  struct sockaddr_ll here = {
      .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = xdp->device.index};
  if (bind(xdp->other_fd, (struct sockaddr *)&here, sizeof(here)) < 0) {
    return socket_failed(xdp, -errno, "bind the packet socket for ARP", error);
  }
  int rc = harp_xdp_steering_attach(&xdp->steering, xdp->spec.interface, xdp->device.index, error);
  return rc < 0 ? rc : check_native(xdp, error);
}

/* The agent has started its sockets. */
static int xdp_start(struct harp_port *port, char *error)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  int rc = xdp->agent.path[0] ? 0 : start_here(xdp, error);
  /* The kernel may merge the frames of a peer on the wire before it runs the program. Merged frames
   * have incomplete checksums. */
  xdp->local_sender |= !xdp->steering.native;
  return rc;
}

/* --- The other calls of port.h --- */

static int xdp_descriptor(struct harp_port *port, unsigned queue)
{
  return harp_xdp_of(port)->epoll_fd;
}

static int xdp_arm(struct harp_port *port, unsigned queue, bool asleep)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  if (!asleep) {
    /* ARP may have woken the poller. The worker does not hold the poll lock here. */
    atomic_store_explicit(&xdp->other_in, 0, memory_order_relaxed);
    return 0;
  }
  return !harp_xdp_flush_all(xdp);
}

/* Frames for all held ports are HARP's. 0, or a negative errno. */
static int hold_all(struct xdp_port *xdp)
{
  const struct packet_range *ranges = xdp->ports.ranges;
  for (unsigned i = 0; i < xdp->ports.range_count; i++) {
    harp_xdp_steering_hold(&xdp->steering, ranges[i].first, ranges[i].last);
  }
  return select_others(xdp, ranges, xdp->ports.range_count);
}

static int xdp_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  bool changed;
  int rc = harp_packet_ports_take(&xdp->ports, queue, wanted, local, &changed);
  if (changed) {
    rc = harp_packet_ports_confirm(&xdp->ports, *local, rc, hold_all(xdp));
  }
  return rc;
}

static void xdp_release(struct harp_port *port, unsigned queue, uint16_t local)
{
  harp_packet_ports_give(&harp_xdp_of(port)->ports, local);
}

static int xdp_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us)
{
  return 0; /* the application's memory is copied */
}

/* The kernel's counts, of all sockets together. It counts an empty fill ring each time that it
 * looks, also where no frame is lost. */
static struct xdp_statistics sum_statistics(const struct xdp_port *xdp)
{
  struct xdp_statistics sum = {0};
  for (unsigned q = 0; q < xdp->socket_count; q++) {
    struct xdp_statistics one = {0};
    socklen_t length = sizeof(one);
    getsockopt(xdp->sockets[q].fd, SOL_XDP, XDP_STATISTICS, &one, &length);
    sum.rx_dropped += one.rx_dropped;
    sum.rx_ring_full += one.rx_ring_full;
    sum.rx_fill_ring_empty_descs += one.rx_fill_ring_empty_descs;
    sum.rx_invalid_descs += one.rx_invalid_descs;
    sum.tx_invalid_descs += one.tx_invalid_descs;
  }
  return sum;
}

static void count_statistics(struct xdp_port *xdp, uint64_t *counters)
{
  struct tpacket_stats others = {0};
  socklen_t length = sizeof(others);
  if (getsockopt(xdp->other_fd, SOL_PACKET, PACKET_STATISTICS, &others, &length) == 0) {
    counters[HARP_COUNTER_port_rx_lost] += others.tp_drops;
  }
  const struct xdp_statistics now = sum_statistics(xdp), before = xdp->counted;
  const uint64_t dropped = now.rx_dropped - before.rx_dropped;
  const uint64_t full = now.rx_ring_full - before.rx_ring_full;
  counters[HARP_COUNTER_port_rx_lost] += dropped + full;
  counters[HARP_COUNTER_xdp_rx_dropped] += dropped;
  counters[HARP_COUNTER_xdp_rx_ring_full] += full;
  counters[HARP_COUNTER_xdp_fill_ring_empty] += now.rx_fill_ring_empty_descs -
                                                before.rx_fill_ring_empty_descs;
  counters[HARP_COUNTER_xdp_invalid_descriptors] += now.rx_invalid_descs - before.rx_invalid_descs +
                                                    now.tx_invalid_descs - before.tx_invalid_descs;
  xdp->counted = now;
}

static void xdp_count(struct harp_port *port, unsigned queue, uint64_t *counters)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  unsigned zero_copy = 0;
  for (unsigned q = 0; q < xdp->socket_count; q++) {
    zero_copy += xdp->sockets[q].zero_copy;
  }
  counters[HARP_COUNTER_xdp_sockets] = xdp->socket_count;
  counters[HARP_COUNTER_xdp_zero_copy] = zero_copy;
  counters[HARP_COUNTER_tx_copied_bytes] += xdp->counts.tx_copied;
  counters[HARP_COUNTER_port_tx_full] += xdp->counts.tx_full;
  counters[HARP_COUNTER_port_tx_errors] += xdp->counts.tx_errors;
  counters[HARP_COUNTER_port_rx_lost] += xdp->counts.rx_lost;
  harp_packet_tx_count(&xdp->packet_tx, counters);
  count_statistics(xdp, counters);
  memset(&xdp->counts, 0, sizeof(xdp->counts));
}

static bool xdp_has_carrier(struct harp_port *port)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  if (harp_netdev_lost_address(xdp->control_fd, &xdp->device, &port->info)) {
    atomic_store_explicit(&xdp->lost_address, true, memory_order_relaxed);
  }
  return harp_netdev_has_carrier(xdp->control_fd, xdp->device.index);
}

const struct harp_port_ops harp_port_xdp = {
    .scheme = "xdp",
    .open = xdp_open,
    .start = xdp_start,
    .close = xdp_close,
    .forget = xdp_forget,
    .receive = harp_xdp_receive,
    .transmit = harp_xdp_transmit,
    .flush = harp_xdp_flush,
    .descriptor = xdp_descriptor,
    .arm = xdp_arm,
    .reserve = xdp_reserve,
    .release = xdp_release,
    .reclaim = xdp_reclaim,
    .has_carrier = xdp_has_carrier,
    .count = xdp_count,
};
