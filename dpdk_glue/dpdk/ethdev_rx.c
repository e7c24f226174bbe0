/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving. A frame in one buffer goes to the stack without a copy. A merged segment is a chain of
 * buffers, and each buffer becomes a segment. HARP writes the headers again into the headroom in
 * front of each buffer's payload, so the payload does not move.
 *
 * Every queue passes foreign frames to their queues if the device cannot steer by local port.
 */
#include <errno.h>
#include <rte_ip.h>
#include <rte_mempool.h>
#include <rte_tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>

#include "dpdk_glue/dpdk/ethdev.h"
#include "dpdk_glue/frame_fields.h"

enum {
  LAST_FLAGS = RTE_TCP_FIN_FLAG | RTE_TCP_PSH_FLAG,
  NAP_LEAST_US = 50, /* first sleep after traffic */
};

/* --- Buffers at the stack, freed at the next receive --- */

static void give(struct ethdev_queue *queue, struct rte_mbuf *mbuf)
{
  queue->given[queue->given_count++] = mbuf;
}

static void take_back(struct ethdev_queue *queue)
{
  if (queue->given_count) {
    rte_pktmbuf_free_bulk(queue->given, queue->given_count);
  }
  queue->given_count = 0;
  while (queue->whole_count) {
    free(queue->whole[--queue->whole_count]);
  }
}

void harp_ethdev_rx_drop(struct ethdev_queue *queue)
{
  take_back(queue);
  if (queue->chain.next) {
    rte_pktmbuf_free(queue->chain.head);
  }
  queue->chain.next = NULL;
  while (queue->received_next < queue->received_count) {
    rte_pktmbuf_free(queue->received[queue->received_next++]);
  }
  void *mbuf;
  while (queue->handed && rte_ring_dequeue(queue->handed, &mbuf) == 0) {
    rte_pktmbuf_free(mbuf);
  }
}

/* --- Frames of other queues --- */

/* Wakes the queue's poller if it sleeps. */
static void wake(struct ethdev_queue *queue)
{
  const struct itimerspec now = {.it_value.tv_nsec = 1};
  if (atomic_load_explicit(&queue->asleep, memory_order_relaxed)) {
    timerfd_settime(queue->timer_fd, 0, &now, NULL);
  }
}

static void hand_over(struct ethdev_port *ethdev, struct ethdev_queue *from, unsigned to,
                      struct rte_mbuf *mbuf)
{
  struct ethdev_queue *queue = &ethdev->queues[to];
  if (!mbuf || rte_ring_enqueue(queue->handed, mbuf) != 0) {
    rte_pktmbuf_free(mbuf);
    from->counts.rx_lost++;
    return;
  }
  from->counts.rx_handed++;
  wake(queue);
}

/* Keeps the queue's own frames in order and passes the others to their queues. */
static void sort(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  unsigned kept = 0;
  for (unsigned i = 0; i < queue->received_count; i++) {
    struct rte_mbuf *mbuf = queue->received[i];
    int to = harp_frame_queue(rte_pktmbuf_mtod(mbuf, const uint8_t *), mbuf->data_len,
                              ethdev->queue_count);
    for (unsigned q = 0; to < 0 && q < ethdev->queue_count; q++) {
      if (q != queue->number) {
        hand_over(ethdev, queue, q, rte_pktmbuf_copy(mbuf, queue->large, 0, UINT32_MAX));
      }
    }
    if (to < 0 || to == queue->number) {
      queue->received[kept++] = mbuf;
    } else {
      hand_over(ethdev, queue, (unsigned)to, mbuf);
    }
  }
  unsigned room = ETHDEV_BURST - kept;
  queue->received_count =
      kept + rte_ring_dequeue_burst(queue->handed, (void **)&queue->received[kept], room, NULL);
}

static void burst(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  queue->received_next = 0;
  queue->received_count = rte_eth_rx_burst(ethdev->id, queue->number, queue->received,
                                           ETHDEV_BURST);
  /* Every queue needs ARP, even if the device steers the other frames. */
  if (ethdev->queue_count > 1) {
    sort(ethdev, queue);
  }
}

/* --- Chains --- */

static bool vouched_for(const struct ethdev_port *ethdev, const struct rte_mbuf *mbuf)
{
  uint64_t sum = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  /* NONE: the checksum field is incomplete, but the data is known to be good. */
  return ethdev->port.info.offloads & HARP_OFFLOAD_RX_CHECKSUM &&
         (sum == RTE_MBUF_F_RX_L4_CKSUM_GOOD || sum == RTE_MBUF_F_RX_L4_CKSUM_NONE);
}

static uint16_t segment_size_of(const struct rte_mbuf *mbuf)
{
  return mbuf->ol_flags & RTE_MBUF_F_RX_LRO ? mbuf->tso_segsz : 0;
}

/* Rewrites the headers for a segment with `payload` bytes. */
static void rewrite(uint8_t *frame, uint16_t header_length, uint32_t sequence, uint32_t payload,
                    uint8_t flags)
{
  struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(frame + ETH_HEADER);
  struct rte_tcp_hdr *tcp = (struct rte_tcp_hdr *)(frame + ETH_HEADER + rte_ipv4_hdr_len(ip));
  ip->total_length = rte_cpu_to_be_16((uint16_t)(header_length - ETH_HEADER + payload));
  ip->hdr_checksum = 0;
  ip->hdr_checksum = rte_ipv4_cksum(ip);
  tcp->sent_seq = rte_cpu_to_be_32(sequence);
  tcp->tcp_flags = flags;
}

static struct harp_rx_frame segment(const struct ethdev_chain *chain, const uint8_t *frame,
                                    uint32_t payload)
{
  uint32_t length = chain->header_length + payload;
  return (struct harp_rx_frame){
      .header = frame,
      .header_length = length,
      .payload = frame + length,
      .segment_size = payload > chain->segment_size ? chain->segment_size : 0,
      .checksum_good = 1,
  };
}

static bool has_headroom(const struct rte_mbuf *mbuf, uint16_t bytes)
{
  for (mbuf = mbuf->next; mbuf; mbuf = mbuf->next) {
    if (rte_pktmbuf_headroom(mbuf) < bytes || mbuf->refcnt != 1 || mbuf->data_len == 0) {
      return false;
    }
  }
  return true;
}

/* Starts a chain and stores its first segment in *out. Returns false if the chain cannot be
 * split into segments. */
static bool begin_chain(struct ethdev_port *ethdev, struct ethdev_queue *queue,
                        struct rte_mbuf *mbuf, struct harp_rx_frame *out)
{
  struct ethdev_chain *chain = &queue->chain;
  struct harp_tcp_fields peek;
  uint8_t *frame = rte_pktmbuf_mtod(mbuf, uint8_t *);
  if (!vouched_for(ethdev, mbuf) || !harp_frame_tcp_fields(frame, mbuf->data_len, &peek) ||
      peek.header_length > mbuf->data_len || peek.header_length > sizeof(chain->header) ||
      !has_headroom(mbuf, peek.header_length)) {
    return false;
  }
  const struct rte_ipv4_hdr *ip = (const struct rte_ipv4_hdr *)(frame + ETH_HEADER);
  const struct rte_tcp_hdr *tcp = (const struct rte_tcp_hdr *)(frame + peek.start);
  uint32_t whole = ETH_HEADER + (uint32_t)rte_be_to_cpu_16(ip->total_length);
  uint32_t payload = (uint32_t)mbuf->data_len - peek.header_length;
  if (whole > mbuf->pkt_len || whole <= mbuf->data_len) {
    return false;
  }
  chain->head = mbuf;
  chain->next = mbuf->next;
  chain->header_length = peek.header_length;
  chain->segment_size = segment_size_of(mbuf);
  chain->last_flags = tcp->tcp_flags & LAST_FLAGS;
  chain->sequence = rte_be_to_cpu_32(tcp->sent_seq);
  chain->left = whole - mbuf->data_len;
  rewrite(frame, peek.header_length, chain->sequence, payload,
          (uint8_t)(tcp->tcp_flags & ~LAST_FLAGS));
  memcpy(chain->header, frame, peek.header_length);
  chain->sequence += payload;
  *out = segment(chain, frame, payload);
  return true;
}

/* Stores the chain's next segment in *out. After the last one the chain's buffers belong to the
 * stack until the next receive. */
static void next_of_chain(struct ethdev_queue *queue, struct harp_rx_frame *out)
{
  struct ethdev_chain *chain = &queue->chain;
  struct rte_mbuf *mbuf = chain->next;
  uint32_t payload = RTE_MIN((uint32_t)mbuf->data_len, chain->left);
  uint8_t *frame = rte_pktmbuf_mtod(mbuf, uint8_t *) - chain->header_length;
  const struct rte_ipv4_hdr *ip = (const struct rte_ipv4_hdr *)(chain->header + ETH_HEADER);
  const struct rte_tcp_hdr *tcp =
      (const struct rte_tcp_hdr *)(chain->header + ETH_HEADER + rte_ipv4_hdr_len(ip));
  chain->left -= payload;
  chain->next = chain->left ? mbuf->next : NULL;
  memcpy(frame, chain->header, chain->header_length);
  rewrite(frame, chain->header_length, chain->sequence, payload,
          (uint8_t)(tcp->tcp_flags | (chain->left ? 0 : chain->last_flags)));
  chain->sequence += payload;
  *out = segment(chain, frame, payload);
  if (!chain->next) {
    give(queue, chain->head);
  }
}

/* Copies a chain into one malloc'ed buffer, for chains that no driver should deliver. */
static bool copy_whole(struct ethdev_port *ethdev, struct ethdev_queue *queue,
                       const struct rte_mbuf *mbuf, struct harp_rx_frame *out)
{
  uint32_t length = mbuf->pkt_len;
  uint8_t *copy = length <= HARP_FRAME_MAX ? malloc(length) : NULL;
  if (!copy) {
    queue->counts.rx_lost++;
    return false;
  }
  queue->whole[queue->whole_count++] = copy;
  for (const struct rte_mbuf *part = mbuf; part; part = part->next) {
    memcpy(copy, rte_pktmbuf_mtod(part, const uint8_t *), part->data_len);
    copy += part->data_len;
  }
  *out = (struct harp_rx_frame){
      .header = copy - length,
      .header_length = length,
      .payload = copy,
      .segment_size = segment_size_of(mbuf),
      .checksum_good = vouched_for(ethdev, mbuf),
  };
  return true;
}

/* --- The burst --- */

/* Stores the next frame in *out. Returns false if a frame was dropped. */
static bool report(struct ethdev_port *ethdev, struct ethdev_queue *queue,
                   struct harp_rx_frame *out)
{
  if (queue->chain.next) {
    next_of_chain(queue, out);
    return true;
  }
  struct rte_mbuf *mbuf = queue->received[queue->received_next++];
  if (queue->received_next < queue->received_count) {
    rte_prefetch0(rte_pktmbuf_mtod(queue->received[queue->received_next], void *));
  }
  if (mbuf->nb_segs > 1) {
    if (begin_chain(ethdev, queue, mbuf, out)) {
      return true;
    }
    give(queue, mbuf);
    return copy_whole(ethdev, queue, mbuf, out);
  }
  const uint8_t *frame = rte_pktmbuf_mtod(mbuf, const uint8_t *);
  *out = (struct harp_rx_frame){
      .header = frame,
      .header_length = mbuf->data_len,
      .payload = frame + mbuf->data_len,
      .segment_size = segment_size_of(mbuf),
      .checksum_good = vouched_for(ethdev, mbuf),
  };
  give(queue, mbuf);
  return true;
}

static bool has_some(const struct ethdev_queue *queue)
{
  return queue->chain.next || queue->received_next < queue->received_count;
}

int harp_ethdev_receive(struct harp_port *port, unsigned number, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  harp_ethdev_enter(queue);
  take_back(queue);
  if (atomic_load_explicit(&ethdev->gone, memory_order_acquire)) {
    return -ENODEV;
  }
  if (!has_some(queue) && harp_ethdev_try_gate(queue)) {
    burst(ethdev, queue);
    harp_ethdev_leave_gate(queue);
  }
  int n = 0;
  while (n < max && n < ETHDEV_BURST && has_some(queue)) {
    n += report(ethdev, queue, &frames[n]);
  }
  if (n) {
    queue->nap_us = NAP_LEAST_US;
    return n;
  }
  return atomic_load_explicit(&ethdev->down, memory_order_relaxed) ? -ENETDOWN : 0;
}

bool harp_ethdev_rx_waits(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  if (has_some(queue) || (queue->handed && !rte_ring_empty(queue->handed))) {
    return true;
  }
  if (!harp_ethdev_try_gate(queue)) {
    return false;
  }
  bool waits = rte_eth_rx_queue_count(ethdev->id, queue->number) > 0;
  harp_ethdev_leave_gate(queue);
  return waits;
}
