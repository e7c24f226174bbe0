/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives an attached device its buffers, queues and offloads. An offload is on if the device has it
 * and the device line does not switch it off.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <rte_cycles.h>
#include <rte_mempool.h>
#include <rte_version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/dpdk/eal.h"
#include "dpdk_glue/dpdk/ethdev.h"
#include "dpdk_glue/fail.h"
#include "dpdk_glue/frame_fields.h"

enum {
  DEVICE_MTU = 1500, /* for devices that report no MTU */
  ROOM_UNIT = 1024,  /* many NICs count receive buffers in KiB, rounded down */
  ROOM_LEAST = 2 * ROOM_UNIT,
  ROOM_LARGE = 9 * ROOM_UNIT,      /* for merged and large segments, which then take few buffers */
  FRAME_OVERHEAD = ETH_HEADER + 8, /* bytes; two VLAN tags that a NIC may leave in */
  CACHE = 128,                     /* buffers in a poller's cache */
  SPARE = 512,                     /* buffers in use by pollers, and in caches */
  RSS_KEY = 64,                    /* longest hash key, bytes */
  RSS_TABLE = 512,                 /* most entries of a redirection table */
  LINK_WAIT_MS = 9000,             /* for a NIC to negotiate its speed */
  VIRTIO_KEEPS = 4,  /* virtio's tx_free_thresh must be this much below the ring size */
  VIRTIO_LEAST = 32, /* fewest descriptors of a virtio ring */
  VIRTIO_MOST = 32768,
  NIC_RING = 1024, /* descriptors; a NIC drops the frames that do not fit */
  RING_LEAST = 64,
  RING_BYTES = 5 << 18, /* of the buffers of a software device's ring */
};

static bool driver_is(const struct rte_eth_dev_info *info, const char *name)
{
  return strcmp(info->driver_name, name) == 0;
}

/* vhost's driver does not report TSO; its argument enables it. */
static bool vhost_segments(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info)
{
  return driver_is(info, "net_vhost") && strstr(ethdev->spec.devargs, ",tso=1");
}

/* A software peer waits for room; a NIC drops. */
static bool is_nic(const struct ethdev_port *ethdev) { return ethdev->spec.pci; }

/* The length of the rings. Frames use the buffers of a software device's ring in turn, so those of
 * a long ring are in no core's own cache. room: bytes of a buffer. */
static uint16_t ring_length(const struct ethdev_port *ethdev, unsigned room)
{
  if (ethdev->spec.descriptors) {
    return (uint16_t)ethdev->spec.descriptors;
  }
  if (is_nic(ethdev)) {
    return NIC_RING;
  }
  unsigned length = RING_LEAST;
  while (2 * length * room <= RING_BYTES) {
    length *= 2;
  }
  return (uint16_t)length;
}

static int failed(const struct ethdev_port *ethdev, int code, const char *what, char *error)
{
  const char *said = harp_eal_complaint();
  return harp_port_fail(error, code, "dpdk:%.150s: %s: %s%s%s", ethdev->spec.name, what,
                        strerror(-code), *said ? "; DPDK says " : "", said);
}

/* --- Offloads --- */

static enum dma_reach reach_of(const struct ethdev_port *ethdev,
                               const struct rte_eth_dev_info *info)
{
  if (!ethdev->spec.reference || !(info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS)) {
    return REACH_NOTHING;
  }
  if (ethdev->spec.pci) {
    return ethdev->spec.physical ? REACH_PHYSICAL : REACH_MAPPED;
  }
  /* Drivers that copy with this process's CPU when they send. virtio_user is not one of them:
   * its peer copies, and only from the memory that DPDK shares with it. */
  return driver_is(info, "net_vhost") || driver_is(info, "net_memif") ? REACH_PROCESS
                                                                      : REACH_NOTHING;
}

static uint64_t rx_offloads(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info)
{
  uint64_t wanted = 0;
  if (ethdev->spec.rx_checksum) {
    wanted |= RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
  }
  /* A merged segment has no checksum of its own, so the device must verify. */
  if (ethdev->spec.rx_checksum && ethdev->spec.lro) {
    wanted |= RTE_ETH_RX_OFFLOAD_TCP_LRO;
  }
  wanted &= info->rx_offload_capa;
  if (wanted & RTE_ETH_RX_OFFLOAD_TCP_LRO) {
    wanted |= info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
  }
  return wanted;
}

static uint64_t tx_offloads(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info)
{
  uint64_t wanted = RTE_ETH_TX_OFFLOAD_MULTI_SEGS, all = info->tx_offload_capa;
  if (vhost_segments(ethdev, info)) {
    all |= RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
  }
  if (ethdev->spec.tx_checksum && all & RTE_ETH_TX_OFFLOAD_TCP_CKSUM) {
    wanted |= RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
    if (ethdev->spec.tso) {
      wanted |= RTE_ETH_TX_OFFLOAD_TCP_TSO;
    }
  }
  return wanted & all;
}

static uint32_t harp_offloads(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info,
                              uint64_t rx, uint64_t tx)
{
  uint32_t offloads = 0;
  if (tx & RTE_ETH_TX_OFFLOAD_TCP_CKSUM) {
    offloads |= HARP_OFFLOAD_TX_CHECKSUM;
  }
  if (tx & RTE_ETH_TX_OFFLOAD_TCP_TSO) {
    offloads |= HARP_OFFLOAD_TSO;
  }
  if (rx & RTE_ETH_RX_OFFLOAD_TCP_CKSUM) {
    offloads |= HARP_OFFLOAD_RX_CHECKSUM;
  }
  if (rx & RTE_ETH_RX_OFFLOAD_TCP_LRO || vhost_segments(ethdev, info)) {
    offloads |= HARP_OFFLOAD_LRO;
  }
  return offloads;
}

/* --- Steering by local port --- */

/*
 * The Toeplitz hash XORs, for every set bit i of addresses and ports, the key's 32 bits from i on.
 * The key has a single set bit, number 126. So only the destination port (bits 80 to 95 of the
 * input) reaches the hash's lower half, unchanged. The queue is then the local port modulo the
 * number of queues, the rule of local_ports.h, if that number is a power of two.
 */
static void port_key(uint8_t *key)
{
  memset(key, 0, RSS_KEY);
  key[126 / 8] = 0x80 >> (126 % 8);
}

static bool can_steer(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info)
{
  unsigned queues = ethdev->queue_count;
  return ethdev->spec.rss && (queues & (queues - 1)) == 0 &&
         info->flow_type_rss_offloads & RTE_ETH_RSS_NONFRAG_IPV4_TCP && info->hash_key_size >= 40 &&
         info->hash_key_size <= RSS_KEY && info->reta_size >= queues &&
         info->reta_size <= RSS_TABLE;
}

/* Fills the redirection table after the start. Returns true only if the device really uses our
 * key. */
static bool steer(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info)
{
  uint8_t key[RSS_KEY], found[RSS_KEY] = {0};
  port_key(key);
  struct rte_eth_rss_conf conf = {.rss_key = found, .rss_key_len = info->hash_key_size};
  if (rte_eth_dev_rss_hash_conf_get(ethdev->id, &conf) < 0 ||
      memcmp(key, found, info->hash_key_size) != 0) {
    return false;
  }
  struct rte_eth_rss_reta_entry64 table[RSS_TABLE / RTE_ETH_RETA_GROUP_SIZE];
  memset(table, 0, sizeof(table));
  for (unsigned i = 0; i < info->reta_size; i++) {
    table[i / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << (i % RTE_ETH_RETA_GROUP_SIZE);
    table[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE] =
        (uint16_t)(i % ethdev->queue_count);
  }
  return rte_eth_dev_rss_reta_update(ethdev->id, table, info->reta_size) == 0;
}

/* --- Buffers --- */

static struct rte_mempool *make_pool(const struct ethdev_port *ethdev, unsigned queue,
                                     const char *kind, unsigned count, unsigned room)
{
  char name[RTE_MEMPOOL_NAMESIZE];
  snprintf(name, sizeof(name), "harp-%u-%u-%s", ethdev->id, queue, kind);
  struct rte_pktmbuf_pool_private shape = {
      .mbuf_data_room_size = (uint16_t)(RTE_PKTMBUF_HEADROOM + room)};
  /* Software peers use virtual addresses, so a buffer may cross pages. Buffers laid out page by
   * page would all fall on the same cache sets. The pool has no IOVAs with this flag, so NICs
   * cannot use it. */
  unsigned flags = ethdev->spec.pci ? 0 : RTE_MEMPOOL_F_NO_IOVA_CONTIG;
  struct rte_mempool *pool = rte_mempool_create_empty(
      name, count, (unsigned)sizeof(struct rte_mbuf) + shape.mbuf_data_room_size, CACHE,
      sizeof(shape), SOCKET_ID_ANY, flags);
  if (!pool) {
    return NULL;
  }
  rte_pktmbuf_pool_init(pool, &shape);
  if (rte_mempool_populate_default(pool) < 0) {
    rte_mempool_free(pool);
    return NULL;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
  return pool;
}

static struct rte_ring *make_ring(const struct ethdev_port *ethdev, unsigned queue)
{
  char name[RTE_RING_NAMESIZE];
  snprintf(name, sizeof(name), "harp-%u-%u", ethdev->id, queue);
  return rte_ring_create(name, ETHDEV_HANDED, SOCKET_ID_ANY, RING_F_SC_DEQ);
}

static int make_buffers(struct ethdev_port *ethdev, unsigned room, char *error)
{
  for (unsigned q = 0; q < ethdev->queue_count; q++) {
    struct ethdev_queue *queue = &ethdev->queues[q];
    /* A driver may fill the device's whole ring, and other pollers hold the frames handed over. */
    unsigned rings = (unsigned)ethdev->rx_descriptors + ethdev->tx_descriptors;
    unsigned large = RTE_MAX(rings, (unsigned)NIC_RING) + SPARE +
                     (ethdev->queue_count > 1 ? ETHDEV_HANDED : 0);
    queue->large = make_pool(ethdev, q, "l", large, room);
    queue->small = make_pool(ethdev, q, "s", 2 * ethdev->tx_descriptors + SPARE, ETHDEV_SMALL);
    if (ethdev->queue_count > 1) {
      queue->handed = make_ring(ethdev, q);
    }
    if (!queue->large || !queue->small || (ethdev->queue_count > 1 && !queue->handed)) {
      return harp_port_fail(error, -ENOMEM,
                            "dpdk:%.100s: no memory for %u buffers of %u bytes "
                            "(%s): set more hugepages aside, or lower `instances` or "
                            "descriptors",
                            ethdev->spec.name, large, room, harp_eal_memory());
    }
  }
  return 0;
}

/* --- Queues --- */

/* virtio's driver frees sent buffers only when more than ring size - tx_free_thresh of them are
 * finished. The highest threshold that it accepts returns references soonest. The device alone
 * decides the ring's size; a higher threshold fails with -EINVAL. */
static int set_up_virtio_tx(struct ethdev_port *ethdev, uint16_t q, unsigned socket,
                            struct rte_eth_txconf *conf)
{
  uint16_t ring = VIRTIO_MOST;
  int rc;
  for (;; ring /= 2) {
    ethdev->tx_descriptors = RTE_MIN(ethdev->tx_descriptors, ring);
    conf->tx_free_thresh = ring - VIRTIO_KEEPS;
    rc = rte_eth_tx_queue_setup(ethdev->id, q, ethdev->tx_descriptors, socket, conf);
    if (rc != -EINVAL || ring <= VIRTIO_LEAST) {
      break;
    }
  }
  if (rc == 0) {
    harp_eal_forget_complaint(); /* of thresholds that were too high */
  }
  /* The receive ring has the same size, and must not ask for more. */
  ethdev->rx_descriptors = RTE_MIN(ethdev->rx_descriptors, ethdev->tx_descriptors);
  return rc;
}

static int set_up_queue(struct ethdev_port *ethdev, const struct rte_eth_dev_info *info, uint16_t q,
                        uint64_t rx, uint64_t tx)
{
  const struct ethdev_queue *queue = &ethdev->queues[q];
  struct rte_eth_rxconf rx_conf = info->default_rxconf;
  struct rte_eth_txconf tx_conf = info->default_txconf;
  rx_conf.offloads = rx;
  tx_conf.offloads = tx;
  unsigned socket = (unsigned)rte_eth_dev_socket_id(ethdev->id);
  int rc = rte_eth_rx_queue_setup(ethdev->id, q, ethdev->rx_descriptors, socket, &rx_conf,
                                  queue->large);
  if (rc < 0) {
    return rc;
  }
  if (driver_is(info, "net_virtio")) {
    return set_up_virtio_tx(ethdev, q, socket, &tx_conf);
  }
  return rte_eth_tx_queue_setup(ethdev->id, q, ethdev->tx_descriptors, socket, &tx_conf);
}

static int set_up(struct ethdev_port *ethdev, const struct rte_eth_dev_info *info, uint64_t rx,
                  uint64_t tx, char *error)
{
  uint8_t key[RSS_KEY];
  port_key(key);
  struct rte_eth_conf conf = {
      .rxmode = {.mtu = ethdev->port.info.mtu, .offloads = rx},
      .txmode = {.offloads = tx},
  };
  if (rx & RTE_ETH_RX_OFFLOAD_TCP_LRO) {
    conf.rxmode.max_lro_pkt_size = info->max_lro_pkt_size;
  }
  bool try_steering = ethdev->queue_count > 1 && can_steer(ethdev, info);
  if (try_steering) {
    conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    conf.rx_adv_conf.rss_conf = (struct rte_eth_rss_conf){
        .rss_key = key, .rss_key_len = info->hash_key_size, .rss_hf = RTE_ETH_RSS_NONFRAG_IPV4_TCP};
  }
  uint16_t queues = (uint16_t)ethdev->queue_count;
  int rc = rte_eth_dev_configure(ethdev->id, queues, queues, &conf);
  for (uint16_t q = 0; rc == 0 && q < queues; q++) {
    rc = set_up_queue(ethdev, info, q, rx, tx);
  }
  if (rc == 0) {
    rc = rte_eth_dev_start(ethdev->id);
  }
  if (rc < 0) {
    return failed(ethdev, rc, "the device does not start", error);
  }
  ethdev->steered = queues == 1 || (try_steering && steer(ethdev, info));
  return 0;
}

static int check_queues(const struct ethdev_port *ethdev, const struct rte_eth_dev_info *info,
                        char *error)
{
  unsigned most = RTE_MIN(info->max_rx_queues, info->max_tx_queues);
  if (ethdev->queue_count <= most) {
    return 0;
  }
  return harp_port_fail(error, -EINVAL,
                        "dpdk:%.100s: %u instances need as many queues, and the "
                        "device has %u: lower `instances`%s",
                        ethdev->spec.name, ethdev->queue_count, most,
                        ethdev->spec.pci ? "" : ", or give the device queues=N");
}

static int choose_mtu(struct ethdev_port *ethdev, const struct rte_eth_dev_info *info, char *error)
{
  uint16_t mtu = ethdev->config.mtu;
  if (!mtu && rte_eth_dev_get_mtu(ethdev->id, &mtu) < 0) {
    mtu = DEVICE_MTU;
  }
  /* Some software devices accept any length and report a huge MTU. */
  if (!ethdev->config.mtu && mtu > 9000) {
    mtu = DEVICE_MTU;
  }
  if (info->max_mtu && mtu > info->max_mtu) {
    return harp_port_fail(error, -EMSGSIZE,
                          "dpdk:%.100s: mtu = %u is beyond the device's %u: "
                          "lower mtu",
                          ethdev->spec.name, mtu, info->max_mtu);
  }
  ethdev->port.info.mtu = mtu;
  return 0;
}

static int choose_mac(struct ethdev_port *ethdev, char *error)
{
  static const uint8_t unset[6];
  struct rte_ether_addr own, wanted;
  int rc = rte_eth_macaddr_get(ethdev->id, &own);
  if (rc < 0) {
    return failed(ethdev, rc, "cannot read the MAC address", error);
  }
  memcpy(wanted.addr_bytes, ethdev->config.mac, 6);
  if (memcmp(ethdev->config.mac, unset, 6) == 0) {
    wanted = own;
  } else if (is_nic(ethdev) && rte_eth_dev_default_mac_addr_set(ethdev->id, &wanted) < 0 &&
             rte_eth_promiscuous_enable(ethdev->id) < 0) {
    return harp_port_fail(error, -EOPNOTSUPP,
                          "dpdk:%.100s: the device does not accept another MAC "
                          "address: remove mac",
                          ethdev->spec.name);
  }
  memcpy(ethdev->port.info.mac, wanted.addr_bytes, 6);
  return 0;
}

static bool link_is_up(const struct ethdev_port *ethdev, uint32_t *speed_mbps)
{
  struct rte_eth_link link = {0};
  bool up = rte_eth_link_get_nowait(ethdev->id, &link) == 0 && link.link_status;
  *speed_mbps = up && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN ? link.link_speed : 0;
  return up;
}

/* A NIC's cable must be plugged in, but a software peer may connect later. */
static int wait_for_link(struct ethdev_port *ethdev, char *error)
{
  uint32_t *speed = &ethdev->port.info.speed_mbps;
  unsigned waited = 0;
  bool up = link_is_up(ethdev, speed);
  for (; !up && is_nic(ethdev) && waited < LINK_WAIT_MS; waited += 20) {
    rte_delay_us_sleep(20000);
    up = link_is_up(ethdev, speed);
  }
  atomic_store(&ethdev->been_up, up);
  if (!up && is_nic(ethdev)) {
    return harp_port_fail(error, -ENETDOWN,
                          "dpdk:%.100s: the link has been down for %u s: check "
                          "the cable, the switch, or the host behind a virtual NIC",
                          ethdev->spec.name, LINK_WAIT_MS / 1000);
  }
  return 0;
}

/* --- Information for the engine and the log --- */

static void summarize(struct ethdev_port *ethdev, const struct rte_eth_dev_info *device)
{
  struct harp_port_info *info = &ethdev->port.info;
  char address[INET_ADDRSTRLEN], spread[32] = "";
  inet_ntop(AF_INET, &info->address, address, sizeof(address));
  if (ethdev->queue_count > 1) {
    snprintf(spread, sizeof(spread), "s (%s)", ethdev->steered ? "steered" : "handed over");
  }
  snprintf(info->summary, sizeof(info->summary),
           "dpdk %.32s (%s), %s/%u, mtu %u, %u queue%s,%s%s%s%s%s %s", ethdev->spec.name,
           device->driver_name, address, info->prefix, info->mtu, ethdev->queue_count, spread,
           info->offloads & HARP_OFFLOAD_TSO ? " tso" : "",
           info->offloads & HARP_OFFLOAD_LRO ? " lro" : "",
           info->offloads & HARP_OFFLOAD_TX_CHECKSUM ? " checksum" : "",
           ethdev->reach != REACH_NOTHING ? " zero-copy" : "",
           info->offloads || ethdev->reach != REACH_NOTHING ? "," : "", harp_eal_memory());
}

static void describe(struct ethdev_port *ethdev, const struct rte_eth_dev_info *device)
{
  struct harp_port_info *info = &ethdev->port.info;
  const struct harp_port_config *config = &ethdev->config;
  info->max_frame = info->offloads & HARP_OFFLOAD_TSO ? HARP_FRAME_MAX
                                                      : ETH_HEADER + (uint32_t)info->mtu;
  if (is_nic(ethdev)) {
    info->receive_depth = ethdev->rx_descriptors * (uint32_t)info->mtu;
  }
  info->address = config->address;
  info->prefix = config->prefix;
  info->gateway = config->gateway;
  /* one peer connects to our socket, perhaps much later */
  info->point_to_point = ethdev->spec.serves;
  if (ethdev->spec.pci) {
    char link[128], path[PATH_MAX];
    snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s", ethdev->spec.name);
    if (realpath(link, path)) {
      snprintf(info->pci_path, sizeof(info->pci_path), "%.255s", path);
    }
  }
  summarize(ethdev, device);
}

int harp_ethdev_configure(struct ethdev_port *ethdev, char *error)
{
  struct rte_eth_dev_info info;
  harp_eal_forget_complaint();
  int rc = rte_eth_dev_info_get(ethdev->id, &info);
  if (rc < 0) {
    return failed(ethdev, rc, "cannot read the device's properties", error);
  }
  rc = check_queues(ethdev, &info, error);
  if (rc == 0) {
    rc = choose_mtu(ethdev, &info, error);
  }
  if (rc < 0) {
    return rc;
  }
  uint64_t rx = rx_offloads(ethdev, &info), tx = tx_offloads(ethdev, &info);
  ethdev->tx_offloads = tx;
  ethdev->port.info.offloads = harp_offloads(ethdev, &info, rx, tx);
  ethdev->reach = reach_of(ethdev, &info);
  ethdev->segments_most = RTE_MIN(
      info.tx_desc_lim.nb_seg_max ? info.tx_desc_lim.nb_seg_max : UINT16_MAX, ETHDEV_SEGMENTS);
  unsigned room = RTE_ALIGN_CEIL(ethdev->port.info.mtu + FRAME_OVERHEAD, ROOM_UNIT);
  bool large = ethdev->port.info.offloads & (HARP_OFFLOAD_LRO | HARP_OFFLOAD_TSO);
  room = RTE_MAX(room, (unsigned)(large ? ROOM_LARGE : ROOM_LEAST));
  ethdev->rx_descriptors = ethdev->tx_descriptors = ring_length(ethdev, room);
  rte_eth_dev_adjust_nb_rx_tx_desc(ethdev->id, &ethdev->rx_descriptors, &ethdev->tx_descriptors);
  if (!ethdev->queues[0].large) {
    rc = make_buffers(ethdev, room, error);
  }
  if (rc == 0) {
    rc = choose_mac(ethdev, error);
  }
  if (rc == 0) {
    rc = set_up(ethdev, &info, rx, tx & info.tx_offload_capa, error);
  }
  if (rc == 0) {
    rc = wait_for_link(ethdev, error);
  }
  if (rc == 0) {
    describe(ethdev, &info);
  }
  return rc;
}

/* --- Queues in this process's memory --- */

/* One bit for each EAL lcore number, which selects a per-core cache. Number 0 is EAL's own. */
static _Atomic uint64_t lcores_taken = 1;

static unsigned take_lcore(void)
{
  uint64_t taken = atomic_load(&lcores_taken);
  while (~taken) {
    unsigned free_one = (unsigned)__builtin_ctzll(~taken);
    if (atomic_compare_exchange_weak(&lcores_taken, &taken, taken | UINT64_C(1) << free_one)) {
      return free_one;
    }
  }
  return LCORE_ID_ANY; /* no cache: slower */
}

static void give_lcore(unsigned lcore)
{
  if (lcore != LCORE_ID_ANY) {
    atomic_fetch_and(&lcores_taken, ~(UINT64_C(1) << lcore));
  }
}

int harp_ethdev_allocate(struct ethdev_port *ethdev, char *error)
{
  size_t size = ethdev->queue_count * sizeof(*ethdev->queues);
  ethdev->queues = aligned_alloc(_Alignof(struct ethdev_queue), size);
  if (!ethdev->queues) {
    return harp_port_fail(error, -ENOMEM, "dpdk:%.150s: out of memory", ethdev->spec.name);
  }
  memset(ethdev->queues, 0, size);
  for (unsigned q = 0; q < ethdev->queue_count; q++) {
    struct ethdev_queue *queue = &ethdev->queues[q];
    atomic_flag_clear(&queue->gate);
    queue->number = (uint16_t)q;
    queue->lcore = take_lcore();
    rte_mbuf_ext_refcnt_set(&queue->dma, 1);
    queue->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  }
  for (unsigned q = 0; q < ethdev->queue_count; q++) {
    if (ethdev->queues[q].timer_fd < 0) {
      return harp_port_fail(error, -EMFILE,
                            "dpdk:%.150s: cannot make a timer; raise the limit of "
                            "open files (ulimit -n)",
                            ethdev->spec.name);
    }
  }
  return 0;
}

void harp_ethdev_free(struct ethdev_port *ethdev)
{
  for (unsigned q = 0; ethdev->queues && q < ethdev->queue_count; q++) {
    struct ethdev_queue *queue = &ethdev->queues[q];
    rte_ring_free(queue->handed);
    rte_mempool_free(queue->large);
    rte_mempool_free(queue->small);
    give_lcore(queue->lcore);
    harp_descriptor_close(queue->timer_fd);
  }
  free(ethdev->queues);
  ethdev->queues = NULL;
}
