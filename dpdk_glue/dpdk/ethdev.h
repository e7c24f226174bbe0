/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "dpdk:DEVICE": the parts of the DPDK port. ethdev.c opens it and takes local ports,
 * ethdev_device.c finds and attaches the device, ethdev_setup.c configures it, ethdev_rx.c
 * receives, ethdev_tx.c sends, dma_map.c keeps the table of the application's mapped memory, and
 * ethdev_owner.c excludes other processes.
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
  ETHDEV_BURST = 32,    /* frames per receive call */
  ETHDEV_PENDING = 64,  /* frames that wait for the end of the burst */
  ETHDEV_SMALL = 384,   /* data room of small buffers, for headers and acknowledgements, bytes */
  ETHDEV_SEGMENTS = 64, /* most buffers in a frame to send */
  ETHDEV_HANDED = 1024, /* ring size for frames that other queues received for a queue */
};

/* Counts since the last count(). port.h's counters have the same names. */
struct ethdev_counts {
  uint64_t tx_copied, tx_referred, tx_full, tx_errors, rx_lost, rx_handed, resets;
};

/* The unprocessed rest of a received mbuf chain. Each buffer becomes a segment. */
struct ethdev_chain {
  struct rte_mbuf *head; /* the whole chain */
  struct rte_mbuf *next; /* NULL: no chain is in progress */
  uint8_t header[128];   /* Ethernet, IPv4 and TCP headers of the previous segment */
  uint16_t header_length;
  uint16_t segment_size;
  uint8_t last_flags; /* TCP flags that only the last segment carries */
  uint32_t sequence;  /* of the next segment */
  uint32_t left;      /* payload bytes still to process */
};

/* One queue, used by one poller. */
struct ethdev_queue {
  _Alignas(64) atomic_flag gate; /* held while the queue uses the device; a reset takes all gates */
  unsigned lcore;                /* the poller uses this lcore's mempool caches */
  uint16_t number;
  struct rte_mempool *small, *large;
  /* 1 + buffers in the application's memory that the device holds */
  struct rte_mbuf_ext_shared_info dma;
  struct ethdev_counts counts;

  struct rte_mbuf *received[ETHDEV_BURST]; /* the last burst */
  unsigned received_count, received_next;
  struct ethdev_chain chain;
  struct rte_mbuf *given[2 * ETHDEV_BURST]; /* returned to the stack by the last receive */
  unsigned given_count;
  void *whole[ETHDEV_BURST]; /* malloc'ed copies of chains, freed at the next receive */
  unsigned whole_count;

  struct rte_mbuf *pending[ETHDEV_PENDING];
  unsigned pending_count;
  unsigned recent; /* index of the last extent found by harp_dma_find */

  struct rte_ring *handed; /* frames that arrived on other queues; NULL: one queue */
  int timer_fd;            /* readable when a sleeping poller must look again */
  uint32_t nap_us;         /* length of the next sleep, microseconds */
  atomic_bool asleep;
};

struct ethdev_port {
  struct harp_port port;
  struct ethdev_spec spec;
  struct harp_port_config config; /* as given to open, but device points to spec.devargs */
  struct ethdev_owner owner;
  uint16_t id;
  struct rte_device *device;
  unsigned queue_count;
  uint16_t rx_descriptors, tx_descriptors;
  uint32_t tx_offloads;   /* RTE_ETH_TX_OFFLOAD_* in use */
  uint16_t segments_most; /* most buffers per frame, as the device reports */
  bool steered;           /* the device delivers by local port */
  enum dma_reach reach;
  struct dma_table dma;
  struct harp_local_ports local_ports;
  atomic_bool gone; /* removed or abandoned: never touched again */
  atomic_bool been_up, down;
  struct ethdev_queue *queues;
};

/* Fills spec.physical, iommu and uio, and checks whether the device can be used. 0, or a
 * negative errno and one line in error. */
int harp_ethdev_probe(struct ethdev_port *ethdev, char *error);
/* Attaches the device to DPDK; sets id and device. */
int harp_ethdev_attach(struct ethdev_port *ethdev, char *error);
/* Detaches the device from DPDK and removes the socket that it leaves behind. */
void harp_ethdev_detach(struct ethdev_port *ethdev);

/* Configures and starts the attached device; fills info, reach and offloads. */
int harp_ethdev_configure(struct ethdev_port *ethdev, char *error);
/* Allocates memory for all queues; call it before configure. */
int harp_ethdev_allocate(struct ethdev_port *ethdev, char *error);
void harp_ethdev_free(struct ethdev_port *ethdev);

/* As in port.h. */
int harp_ethdev_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max);
int harp_ethdev_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame);
void harp_ethdev_flush(struct harp_port *port, unsigned queue);
int harp_ethdev_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us);

/* Closes the device and opens it again, so that it holds no application memory. Marks the
 * device as gone if that fails. The poller of any queue may call it without holding a gate. */
void harp_ethdev_reset(struct ethdev_port *ethdev);

/* Free all buffers that a queue holds. */
void harp_ethdev_rx_drop(struct ethdev_queue *queue);
void harp_ethdev_tx_drop(struct ethdev_queue *queue);
/* Tells whether frames wait for the queue. Only its poller may call it. */
bool harp_ethdev_rx_waits(struct ethdev_port *ethdev, struct ethdev_queue *queue);

static inline struct ethdev_port *harp_ethdev_of(struct harp_port *port)
{
  return (struct ethdev_port *)port;
}

/* Any thread may hold the poll lock, but DPDK's mempool caches belong to lcore numbers. So the
 * poller of a queue takes the queue's lcore number. */
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
