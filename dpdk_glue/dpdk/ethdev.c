/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "dpdk:DEVICE": a NIC that DPDK drives, or one of DPDK's software devices.
 *
 * HARP uses no interrupts. A timer wakes a sleeping poller to look for frames, first after
 * NAP_LEAST_US and at last every millisecond.
 */
#include "dpdk_glue/dpdk/ethdev.h"

#include <errno.h>
#include <rte_errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "dpdk_glue/dpdk/eal.h"
#include "dpdk_glue/fail.h"
#include "harp/counters.h"

enum { NAP_MOST_US = 1000 };

/* --- Events, on DPDK's thread --- */

static int device_removed(uint16_t id, enum rte_eth_event_type event, void *argument, void *unused)
{
  struct ethdev_port *ethdev = argument;
  atomic_store_explicit(&ethdev->gone, true, memory_order_release);
  return 0;
}

/* --- Link state, read when counters are read --- */

static void look_at_link(struct ethdev_port *ethdev)
{
  struct rte_eth_link link = {0};
  if (atomic_load_explicit(&ethdev->gone, memory_order_acquire) ||
      rte_eth_link_get_nowait(ethdev->id, &link) < 0) {
    return;
  }
  bool up = link.link_status == RTE_ETH_LINK_UP;
  if (up) {
    atomic_store_explicit(&ethdev->been_up, true, memory_order_relaxed);
  }
  /* A software peer that has not connected yet is not a failure. */
  atomic_store_explicit(&ethdev->down,
                        !up && atomic_load_explicit(&ethdev->been_up, memory_order_relaxed),
                        memory_order_relaxed);
}

/* --- Reset: the last resort if the device keeps references --- */

/* Keeps all pollers off the device until leave_gates. */
static void take_gates(struct ethdev_port *ethdev)
{
  for (unsigned q = 0; q < ethdev->queue_count; q++) {
    while (!harp_ethdev_try_gate(&ethdev->queues[q])) {
      sched_yield();
    }
  }
}

static void leave_gates(struct ethdev_port *ethdev)
{
  for (unsigned q = 0; q < ethdev->queue_count; q++) {
    harp_ethdev_leave_gate(&ethdev->queues[q]);
  }
}

static void restart(void *argument)
{
  struct ethdev_port *ethdev = argument;
  char error[HARP_PORT_ERROR_SIZE];
  harp_ethdev_detach(ethdev);
  if (harp_ethdev_attach(ethdev, error) < 0 || harp_ethdev_configure(ethdev, error) < 0) {
    atomic_store(&ethdev->gone, true);
  } else {
    rte_eth_dev_callback_register(ethdev->id, RTE_ETH_EVENT_INTR_RMV, device_removed, ethdev);
  }
  harp_dma_table_move(&ethdev->dma, ethdev->device);
}

/* The device reads nothing after the close, and its driver has freed all buffers. */
void harp_ethdev_reset(struct ethdev_port *ethdev)
{
  take_gates(ethdev);
  if (harp_eal_thread(restart, ethdev) < 0) {
    rte_eth_dev_stop(ethdev->id);
    atomic_store(&ethdev->gone, true);
  }
  leave_gates(ethdev);
}

/* --- Opening and closing --- */

struct opening {
  struct ethdev_port *ethdev;
  char *error;
  int result;
};

static void open_device(void *argument)
{
  struct opening *opening = argument;
  struct ethdev_port *ethdev = opening->ethdev;
  int rc = harp_ethdev_probe(ethdev, opening->error);
  if (rc == 0) {
    rc = harp_ethdev_allocate(ethdev, opening->error);
  }
  if (rc == 0) {
    rc = harp_ethdev_attach(ethdev, opening->error);
  }
  if (rc == 0) {
    rc = harp_ethdev_configure(ethdev, opening->error);
  }
  if (rc == 0 &&
      harp_dma_table_init(&ethdev->dma, ethdev->reach, ethdev->device, ethdev->spec.regions) < 0) {
    rc = harp_port_fail(opening->error, -ENOMEM, "dpdk:%.150s: out of memory", ethdev->spec.name);
  }
  if (rc == 0) {
    rte_eth_dev_callback_register(ethdev->id, RTE_ETH_EVENT_INTR_RMV, device_removed, ethdev);
  }
  opening->result = rc;
}

static void close_device(void *argument)
{
  struct ethdev_port *ethdev = argument;
  for (unsigned q = 0; ethdev->queues && q < ethdev->queue_count; q++) {
    harp_ethdev_tx_drop(&ethdev->queues[q]);
    harp_ethdev_rx_drop(&ethdev->queues[q]);
  }
  if (ethdev->device) {
    rte_eth_dev_callback_unregister(ethdev->id, RTE_ETH_EVENT_INTR_RMV, device_removed, ethdev);
  }
  harp_dma_table_close(&ethdev->dma);
  harp_ethdev_detach(ethdev);
  harp_ethdev_free(ethdev);
  harp_ethdev_owner_give(&ethdev->owner);
}

static void ethdev_close(struct harp_port *port)
{
  harp_eal_thread(close_device, port);
  free(port);
}

/* Software devices have files of DPDK's own, which stay open here. */
static void ethdev_forget(struct harp_port *port)
{
  harp_ethdev_owner_forget(&harp_ethdev_of(port)->owner);
}

static int set_up(struct ethdev_port *ethdev, const struct harp_port_config *config, char *error)
{
  struct opening opening = {.ethdev = ethdev, .error = error};
  int rc = harp_ethdev_spec_parse(&ethdev->spec, config->device, error);
  if (rc < 0) {
    return rc;
  }
  if (!config->address) {
    return harp_port_fail(error, -EINVAL,
                          "dpdk:%.150s: the kernel has no address on this device "
                          "to share; set address = A.B.C.D/N",
                          ethdev->spec.name);
  }
  ethdev->config = *config;
  ethdev->config.device = ethdev->spec.devargs;
  ethdev->queue_count = config->queues;
  harp_local_ports_init(&ethdev->local_ports, config->ports_first, config->ports_last);
  rc = harp_eal_thread(open_device, &opening);
  if (rc < 0) {
    return harp_port_fail(error, rc,
                          "dpdk:%.150s: cannot start a thread: %s; raise the limit on "
                          "processes (ulimit -u, pids.max)",
                          ethdev->spec.name, strerror(-rc));
  }
  return opening.result;
}

static int ethdev_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  struct ethdev_port *ethdev = calloc(1, sizeof(*ethdev));
  if (!ethdev) {
    return harp_port_fail(error, -ENOMEM, "dpdk:%.150s: out of memory", config->device);
  }
  ethdev->port.ops = &harp_port_dpdk;
  harp_ethdev_owner_init(&ethdev->owner);
  int rc = set_up(ethdev, config, error);
  if (rc < 0) {
    ethdev_close(&ethdev->port);
    return rc;
  }
  *port = &ethdev->port;
  return 0;
}

/* --- Sleeping --- */

static int ethdev_descriptor(struct harp_port *port, unsigned number)
{
  return harp_ethdev_of(port)->queues[number].timer_fd;
}

static void nap(struct ethdev_queue *queue)
{
  struct itimerspec at = {.it_value.tv_nsec = queue->nap_us * 1000};
  timerfd_settime(queue->timer_fd, 0, &at, NULL);
  queue->nap_us = RTE_MIN(queue->nap_us * 2, (uint32_t)NAP_MOST_US);
}

static int ethdev_arm(struct harp_port *port, unsigned number, bool asleep)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  uint64_t rang;
  if (!asleep) {
    atomic_store_explicit(&queue->asleep, false, memory_order_relaxed);
    (void)!read(queue->timer_fd, &rang, sizeof(rang));
    return 0;
  }
  harp_ethdev_flush(port, number);
  if (atomic_load_explicit(&ethdev->gone, memory_order_acquire)) {
    return 0;
  }
  atomic_store(&queue->asleep, true);
  nap(queue);
  if (!harp_ethdev_rx_waits(ethdev, queue)) {
    return 0;
  }
  atomic_store_explicit(&queue->asleep, false, memory_order_relaxed);
  return 1;
}

/* --- Local ports, memory, counts --- */

static int ethdev_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  return harp_local_ports_take(&ethdev->local_ports, queue, ethdev->queue_count, wanted, local);
}

static void ethdev_release(struct harp_port *port, unsigned queue, uint16_t local)
{
  harp_local_ports_give(&harp_ethdev_of(port)->local_ports, local);
}

static int ethdev_dma_map(struct harp_port *port, uintptr_t start, uintptr_t end)
{
  return harp_dma_map(&harp_ethdev_of(port)->dma, start, end);
}

static void ethdev_dma_revoke(struct harp_port *port, uintptr_t start, uintptr_t end)
{
  harp_dma_revoke(&harp_ethdev_of(port)->dma, start, end);
}

static void ethdev_dma_unmap_deferred(struct harp_port *port)
{
  harp_dma_unmap_deferred(&harp_ethdev_of(port)->dma);
}

static void ethdev_count(struct harp_port *port, unsigned number, uint64_t *counters)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  struct ethdev_counts *counts = &queue->counts;
  if (number == 0) {
    look_at_link(ethdev);
  }
  counters[HARP_COUNTER_tx_copied_bytes] += counts->tx_copied;
  counters[HARP_COUNTER_tx_zero_copy_bytes] += counts->tx_referred;
  counters[HARP_COUNTER_port_tx_full] += counts->tx_full;
  counters[HARP_COUNTER_port_tx_errors] += counts->tx_errors;
  counters[HARP_COUNTER_port_rx_lost] += counts->rx_lost;
  counters[HARP_COUNTER_port_rx_handed] += counts->rx_handed;
  counters[HARP_COUNTER_port_resets] += counts->resets;
  memset(counts, 0, sizeof(*counts));
}

const struct harp_port_ops harp_port_dpdk = {
    .scheme = "dpdk",
    .open = ethdev_open,
    .close = ethdev_close,
    .forget = ethdev_forget,
    .receive = harp_ethdev_receive,
    .transmit = harp_ethdev_transmit,
    .flush = harp_ethdev_flush,
    .descriptor = ethdev_descriptor,
    .arm = ethdev_arm,
    .reserve = ethdev_reserve,
    .release = ethdev_release,
    .dma_map = ethdev_dma_map,
    .dma_revoke = ethdev_dma_revoke,
    .dma_unmap_deferred = ethdev_dma_unmap_deferred,
    .reclaim = harp_ethdev_reclaim,
    .count = ethdev_count,
};
