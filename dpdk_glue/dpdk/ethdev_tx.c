/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending. Headers are copied into a DPDK buffer. Payload in mapped memory is chained behind it
 * without a copy. All other payload is copied and counted.
 *
 * `dma` in the queue counts the buffers that point to application memory. A buffer counts from its
 * creation until the driver frees it, which is when the device has finished.
 */
#include <errno.h>
#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <string.h>

#include "dpdk_glue/dpdk/ethdev.h"
#include "dpdk_glue/frame_fields.h"

enum {
  /* Unmapped pieces up to this size are HARP's own (welcome, chunk headers) and not counted. */
  CONTROL_MAX = 256,
  KICK_LENGTH = 60,   /* bytes; the shortest Ethernet frame without its FCS */
  KICK_TYPE = 0x88b5, /* IEEE 802's local experimental EtherType, which no host handles */
  PAUSE_US = 20,
};

/* --- The queue --- */

/* A frame that the driver rejects permanently is lost, as on a wire. */
static void drop_refused(struct ethdev_queue *queue, unsigned at)
{
  rte_pktmbuf_free(queue->pending[at]);
  queue->pending_count--;
  memmove(&queue->pending[at], &queue->pending[at + 1],
          (queue->pending_count - at) * sizeof(queue->pending[0]));
  queue->counts.tx_errors++;
}

/* Gives pending frames to the device. Frames without room stay pending. */
static void push(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  uint16_t id = ethdev->id, number = queue->number;
  if (!queue->pending_count || !harp_ethdev_try_gate(queue)) {
    return;
  }
  if (!atomic_load_explicit(&ethdev->gone, memory_order_acquire)) {
    uint16_t ready = rte_eth_tx_prepare(id, number, queue->pending, (uint16_t)queue->pending_count);
    uint16_t sent = ready ? rte_eth_tx_burst(id, number, queue->pending, ready) : 0;
    queue->pending_count -= sent;
    memmove(queue->pending, queue->pending + sent,
            queue->pending_count * sizeof(queue->pending[0]));
    if (sent == ready && queue->pending_count) {
      drop_refused(queue, 0);
    }
  }
  harp_ethdev_leave_gate(queue);
}

void harp_ethdev_tx_drop(struct ethdev_queue *queue)
{
  rte_pktmbuf_free_bulk(queue->pending, queue->pending_count);
  queue->pending_count = 0;
}

void harp_ethdev_flush(struct harp_port *port, unsigned number)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  harp_ethdev_enter(queue);
  push(ethdev, queue);
}

/* --- A frame as buffers --- */

struct build {
  struct ethdev_queue *queue;
  struct rte_mbuf *head, *tail;
  uint32_t copied, referred; /* payload bytes */
};

static bool chain(struct build *build, struct rte_mbuf *mbuf)
{
  if (!mbuf) {
    return false;
  }
  if (!build->head) {
    build->head = build->tail = mbuf;
    return true;
  }
  build->tail->next = mbuf;
  build->tail = mbuf;
  build->head->nb_segs++;
  return true;
}

static bool append_copy(struct build *build, const uint8_t *data, size_t length)
{
  while (length) {
    struct rte_mbuf *tail = build->tail;
    size_t room = tail && RTE_MBUF_DIRECT(tail) ? rte_pktmbuf_tailroom(tail) : 0;
    if (!room) {
      struct ethdev_queue *queue = build->queue;
      if (!chain(build, rte_pktmbuf_alloc(length > ETHDEV_SMALL ? queue->large : queue->small))) {
        return false;
      }
      continue;
    }
    size_t part = length < room ? length : room;
    memcpy(rte_pktmbuf_mtod_offset(tail, uint8_t *, tail->data_len), data, part);
    tail->data_len = (uint16_t)(tail->data_len + part);
    build->head->pkt_len += (uint32_t)part;
    data += part;
    length -= part;
  }
  return true;
}

static bool append_reference(struct build *build, uint64_t iova, const uint8_t *data, size_t length)
{
  struct rte_mbuf *mbuf = rte_pktmbuf_alloc(build->queue->small);
  if (!mbuf) {
    return false;
  }
  rte_mbuf_ext_refcnt_update(&build->queue->dma, 1);
  rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)data, iova, (uint16_t)length,
                            &build->queue->dma);
  mbuf->data_len = (uint16_t)length;
  chain(build, mbuf);
  build->head->pkt_len += (uint32_t)length;
  return true;
}

/* Appends one piece of payload, by reference as far as the device can reach it. */
static bool append_payload(struct ethdev_port *ethdev, struct build *build, const uint8_t *data,
                           size_t length)
{
  while (length) {
    struct dma_extent extent;
    uintptr_t at = (uintptr_t)data;
    if (!harp_dma_find(&ethdev->dma, at, &build->queue->recent, &extent)) {
      build->copied += length > CONTROL_MAX ? (uint32_t)length : 0;
      return append_copy(build, data, length);
    }
    size_t part = extent.end - at < length ? extent.end - at : length;
    if (!append_reference(build, extent.iova + (at - extent.start), data, part)) {
      return false;
    }
    build->referred += (uint32_t)part;
    data += part;
    length -= part;
  }
  return true;
}

static bool build_by_reference(struct ethdev_port *ethdev, struct build *build,
                               const struct harp_tx_frame *frame)
{
  bool whole = chain(build, rte_pktmbuf_alloc(build->queue->small)) &&
               append_copy(build, frame->iov[0].iov_base, frame->iov[0].iov_len);
  for (unsigned i = 1; whole && i < frame->iov_count; i++) {
    whole = append_payload(ethdev, build, frame->iov[i].iov_base, frame->iov[i].iov_len);
  }
  return whole;
}

static bool build_by_copy(struct build *build, const struct harp_tx_frame *frame)
{
  struct ethdev_queue *queue = build->queue;
  bool whole = chain(build,
                     rte_pktmbuf_alloc(frame->length > ETHDEV_SMALL ? queue->large : queue->small));
  for (unsigned i = 0; whole && i < frame->iov_count; i++) {
    whole = append_copy(build, frame->iov[i].iov_base, frame->iov[i].iov_len);
  }
  build->copied = frame->length - frame->header_length;
  return whole;
}

static void drop_build(struct build *build)
{
  rte_pktmbuf_free(build->head);
  *build = (struct build){.queue = build->queue};
}

/* Sets the offload flags of the frame. */
static void mark(const struct ethdev_port *ethdev, struct rte_mbuf *mbuf,
                 const struct harp_tx_frame *frame)
{
  if (!frame->checksum_needed) {
    return;
  }
  mbuf->l2_len = ETH_HEADER;
  mbuf->l3_len = frame->checksum_start - ETH_HEADER;
  mbuf->l4_len = frame->header_length - frame->checksum_start;
  mbuf->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_TCP_CKSUM;
  if (!frame->segment_size || frame->length - frame->header_length <= frame->segment_size) {
    return;
  }
  mbuf->tso_segsz = frame->segment_size;
  mbuf->ol_flags |= RTE_MBUF_F_TX_TCP_SEG;
  if (ethdev->tx_offloads & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM) {
    mbuf->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
  }
}

int harp_ethdev_transmit(struct harp_port *port, unsigned number, const struct harp_tx_frame *frame)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  struct build build = {.queue = queue};
  harp_ethdev_enter(queue);
  if (frame->length > port->info.max_frame) {
    return -EMSGSIZE;
  }
  if (queue->pending_count == ETHDEV_PENDING) {
    push(ethdev, queue);
  }
  if (queue->pending_count == ETHDEV_PENDING) {
    queue->counts.tx_full++;
    return -EAGAIN;
  }
  bool refer = ethdev->reach != REACH_NOTHING && frame->iov_count > 1;
  bool whole = refer && build_by_reference(ethdev, &build, frame) &&
               build.head->nb_segs <= ethdev->segments_most;
  if (!whole) {
    drop_build(&build);
    whole = build_by_copy(&build, frame);
  }
  if (!whole) {
    drop_build(&build);
    queue->counts.tx_full++;
    return -EAGAIN;
  }
  mark(ethdev, build.head, frame);
  queue->counts.tx_copied += build.copied;
  queue->counts.tx_referred += build.referred;
  queue->pending[queue->pending_count++] = build.head;
  return 0;
}

/* --- Reclaim --- */

static bool holds_foreign(const struct ethdev_queue *queue)
{
  return rte_mbuf_ext_refcnt_read(&queue->dma) > 1;
}

static void fill_kick_frame(const struct ethdev_port *ethdev, struct rte_mbuf *mbuf)
{
  uint8_t *frame = rte_pktmbuf_mtod(mbuf, uint8_t *);
  mbuf->data_len = KICK_LENGTH;
  mbuf->pkt_len = KICK_LENGTH;
  memset(frame, 0, KICK_LENGTH);
  memcpy(frame + ETH_DST, ethdev->port.info.mac, 6);
  memcpy(frame + ETH_SRC, ethdev->port.info.mac, 6);
  frame[ETH_TYPE] = KICK_TYPE >> 8;
  frame[ETH_TYPE + 1] = KICK_TYPE & 0xff;
}

/*
 * Drivers look for finished buffers when they send, and some only then. So reclaim sends a frame to
 * the NIC's own address with an EtherType that no host handles.
 */
static void kick_tx(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  struct rte_mbuf *mbuf = queue->pending_count < ETHDEV_PENDING ? rte_pktmbuf_alloc(queue->small)
                                                                : NULL;
  if (mbuf) {
    fill_kick_frame(ethdev, mbuf);
    queue->pending[queue->pending_count++] = mbuf;
  }
  push(ethdev, queue);
}

/* Some drivers can free sent buffers without sending. */
static void clean_up(struct ethdev_port *ethdev, struct ethdev_queue *queue)
{
  if (!harp_ethdev_try_gate(queue)) {
    return;
  }
  rte_eth_tx_done_cleanup(ethdev->id, queue->number, 0);
  harp_ethdev_leave_gate(queue);
}

/* Replaces references in frames that wait for the device by copies, because the wait may be
 * long. */
static void copy_pending(struct ethdev_queue *queue)
{
  unsigned kept = 0;
  for (unsigned i = 0; i < queue->pending_count; i++) {
    struct rte_mbuf *mbuf = queue->pending[i];
    uint64_t foreign = 0;
    for (const struct rte_mbuf *part = mbuf; part; part = part->next) {
      foreign += RTE_MBUF_HAS_EXTBUF(part) ? part->data_len : 0;
    }
    if (foreign) {
      mbuf = rte_pktmbuf_copy(queue->pending[i], queue->large, 0, UINT32_MAX);
      rte_pktmbuf_free(queue->pending[i]);
      queue->counts.tx_referred -= foreign;
      queue->counts.tx_copied += foreign;
      queue->counts.tx_errors += !mbuf;
    }
    if (mbuf) {
      queue->pending[kept++] = mbuf;
    }
  }
  queue->pending_count = kept;
}

int harp_ethdev_reclaim(struct harp_port *port, unsigned number, uint32_t timeout_us)
{
  struct ethdev_port *ethdev = harp_ethdev_of(port);
  struct ethdev_queue *queue = &ethdev->queues[number];
  harp_ethdev_enter(queue);
  if (!holds_foreign(queue)) {
    return 0;
  }
  push(ethdev, queue);
  copy_pending(queue);
  uint64_t end = rte_get_timer_cycles() + timeout_us * (rte_get_timer_hz() / 1000000);
  while (holds_foreign(queue) && !atomic_load(&ethdev->gone)) {
    clean_up(ethdev, queue);
    if (!holds_foreign(queue)) {
      break;
    }
    kick_tx(ethdev, queue);
    if (rte_get_timer_cycles() >= end) {
      queue->counts.resets++;
      harp_ethdev_reset(ethdev);
      return 0;
    }
    rte_delay_us_sleep(PAUSE_US);
  }
  return 0;
}
