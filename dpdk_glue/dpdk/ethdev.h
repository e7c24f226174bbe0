/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "dpdk:DEVICE": the parts of the DPDK port. ethdev.c opens it and takes ports,
 * ethdev_device.c finds and attaches the device, ethdev_setup.c configures it,
 * ethdev_rx.c receives, ethdev_tx.c sends, dma_map.c keeps the table of
 * memory that the application lends, ethdev_owner.c other processes out.
 */
#ifndef HARP_DPDK_GLUE_ETHDEV_H
#define HARP_DPDK_GLUE_ETHDEV_H

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/dpdk/dma_map.h"
#include "dpdk_glue/dpdk/ethdev_owner.h"
#include "dpdk_glue/dpdk/ethdev_spec.h"
#include "dpdk_glue/local_ports.h"
#include "dpdk_glue/port.h"

enum {
  ETHDEV_BURST = 32,    /* frames a receive call */
  ETHDEV_PENDING = 64,  /* frames that wait for the end of the burst */
  ETHDEV_SMALL = 384,   /* data room of small buffers: headers, acknowledgements, bytes */
  ETHDEV_SEGMENTS = 64, /* most buffers of a frame to send */
  ETHDEV_HANDED = 1024, /* frames that other queues may have received for one */
};

/* Counts since the last count(); port.h's counters of the same names. */
struct ethdev_counts {
  uint64_t tx_copied, tx_referred, tx_full, tx_errors, rx_lost, rx_handed, resets;
};

/* The rest of a received chain, of which every buffer becomes a segment. */
struct ethdev_chain {
  struct rte_mbuf *head; /* the whole of it */
  struct rte_mbuf *next; /* NULL: there is none */
  uint8_t header[128];   /* Ethernet, IPv4 and TCP, as for the segment before */
  uint16_t header_length;
  uint16_t segment_size;
  uint8_t last_flags; /* TCP flags that belong to the last segment only */
  uint32_t sequence;  /* of the next segment */
  uint32_t left;      /* payload bytes to come */
};

/* One poller's. */
struct ethdev_queue {
  _Alignas(64) atomic_flag gate; /* held while the device is used; by others to reset it */
  unsigned lcore;                /* whose mempool caches the poller uses */
  uint16_t number;
  struct rte_mempool *small, *large;
  struct rte_mbuf_ext_shared_info dma; /* 1 + buffers in foreign memory that the device has */
  struct ethdev_counts counts;

  struct rte_mbuf *received[ETHDEV_BURST]; /* by the last burst */
  unsigned received_count, received_next;
  struct ethdev_chain chain;
  struct rte_mbuf *given[2 * ETHDEV_BURST]; /* to the stack, by the last receive */
  unsigned given_count;
  void *whole[ETHDEV_BURST]; /* chains that had to be copied together, likewise */
  unsigned whole_count;

  struct rte_mbuf *pending[ETHDEV_PENDING];
  unsigned pending_count;
  unsigned recent; /* where the last reference was found */

  struct rte_ring *handed; /* frames that arrived on other queues; NULL: the device steers */
  int timer_fd;            /* readable when a sleeping poller must look again */
  uint32_t nap_us;         /* the next sleep's length */
  atomic_bool asleep;
};

struct ethdev_port {
  struct harp_port port;
  struct ethdev_spec spec;
  struct harp_port_config config; /* as it was opened with; device is spec's */
  struct ethdev_owner owner;
  uint16_t id;
  struct rte_device *device;
  unsigned queue_count;
  uint16_t rx_descriptors, tx_descriptors;
  uint32_t tx_offloads;   /* RTE_ETH_TX_OFFLOAD_* in use */
  uint16_t segments_most; /* of a frame, as the device says */
  bool steered;           /* the device itself delivers by local port */
  enum dma_reach reach;
  struct dma_table dma;
  struct harp_local_ports local_ports;
  atomic_bool gone; /* removed, or given up: never touched again */
  atomic_bool been_up, down;
  struct ethdev_queue *queues;
};

/* Fills spec.physical, iommu and uio, and finds out whether the device can be had:
 * 0, or a negative errno and one line. */
int harp_ethdev_probe(struct ethdev_port *ethdev, char *error);
/* Hands the device to DPDK: id and device. */
int harp_ethdev_attach(struct ethdev_port *ethdev, char *error);
/* Takes it back, with what it leaves behind. */
void harp_ethdev_detach(struct ethdev_port *ethdev);

/* Configures and starts the attached device; fills info, reach and offloads. */
int harp_ethdev_configure(struct ethdev_port *ethdev, char *error);
/* Memory for all queues, before configure. */
int harp_ethdev_allocate(struct ethdev_port *ethdev, char *error);
void harp_ethdev_free(struct ethdev_port *ethdev);

/* As in port.h. */
int harp_ethdev_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max);
int harp_ethdev_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
void harp_ethdev_flush(struct harp_port *port, unsigned queue);
int harp_ethdev_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us);

/* Closes the device and opens it again, so that it holds no foreign memory; if
 * that fails it is gone. By the poller of any queue, which holds no gate. 0. */
int harp_ethdev_reset(struct ethdev_port *ethdev);

/* Gives back all that a queue holds. */
void harp_ethdev_rx_drop(struct ethdev_queue *queue);
void harp_ethdev_tx_drop(struct ethdev_queue *queue);
/* Whether frames wait for the queue; the poller only. */
bool harp_ethdev_rx_waits(struct ethdev_port *ethdev, struct ethdev_queue *queue);
/* Makes a sleeping poller look. */
void harp_ethdev_wake(struct ethdev_queue *queue);

static inline struct ethdev_port *harp_ethdev_of(struct harp_port *port)
{
  return (struct ethdev_port *)port;
}

/* The poll lock may come from any thread, and DPDK's caches belong to numbers, not
 * to threads: whoever polls the queue is its number meanwhile. */
static inline void harp_ethdev_enter(const struct ethdev_queue *queue)
{
  RTE_PER_LCORE(_lcore_id) = queue->lcore;
}

static inline bool harp_ethdev_try_gate(struct ethdev_queue *queue)
{
  return !atomic_flag_test_and_set_explicit(&queue->gate, memory_order_acquire);
}

static inline void harp_ethdev_leave_gate(struct ethdev_queue *queue)
{
  atomic_flag_clear_explicit(&queue->gate, memory_order_release);
}

#endif
