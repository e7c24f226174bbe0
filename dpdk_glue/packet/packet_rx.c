/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: one recvmmsg per burst, with each frame scattered as the hint says.
 *
 * A slot is memory for one whole frame, with room in front:
 *
 *   | ... | vnet header | header_length bytes | placed | the rest ... |
 *                                             ^ front
 *
 * The header ends at front. With a hint, the kernel writes the next `placed` bytes to the address
 * where the payload belongs, and the rest of the frame behind an equal gap in the slot. If the
 * guess was wrong, copying the placed bytes into the gap makes the frame contiguous. This one
 * repair covers every wrong guess.
 *
 * A burst always uses the first slots, so that they stay in the cache.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/kernel/packet_calls.h"
#include "dpdk_glue/packet/packet.h"

enum {
  LEAST_BURST = 2,
  LEAST_HEADERS = ETH_HEADER + IP_HEADER + TCP_HEADER, /* without options */
};

int harp_packet_rx_init(struct packet_queue *queue)
{
  queue->slots = mmap(NULL, (size_t)PACKET_BURST * PACKET_SLOT, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (queue->slots == MAP_FAILED) {
    queue->slots = NULL;
    return -ENOMEM;
  }
  queue->burst = LEAST_BURST;
  for (unsigned i = 0; i < PACKET_BURST; i++)
    queue->rx[i].msg_hdr.msg_iov = queue->rx_iov[i];
  return 0;
}

void harp_packet_rx_free(struct packet_queue *queue)
{
  if (queue->slots)
    munmap(queue->slots, (size_t)PACKET_BURST * PACKET_SLOT);
  queue->slots = NULL;
}

static uint8_t *slot_front(struct packet_queue *queue, unsigned i)
{
  return queue->slots + (size_t)i * PACKET_SLOT + PACKET_HEADER_ROOM;
}

/* Computes what the hint says about frame i. placed is 0 if it says nothing. */
static struct packet_slot apply_hint(const struct harp_rx_hint *hint, unsigned i)
{
  struct packet_slot slot = {0};
  if (!hint || !hint->payload || hint->header_length < LEAST_HEADERS ||
      hint->header_length > PACKET_HEADER_ROOM - PACKET_VNET)
    return slot;
  size_t offset = i * hint->stride;
  if (offset >= hint->length)
    return slot;
  size_t placed = hint->length - offset < hint->stride ? hint->length - offset : hint->stride;
  size_t most = HARP_FRAME_MAX - (size_t)hint->header_length;
  slot.header = hint->header_length;
  slot.hint = hint->payload + offset;
  slot.placed = (uint32_t)(placed < most ? placed : most);
  return slot;
}

static void prepare(struct packet_queue *queue, const struct harp_rx_hint *hint, unsigned count)
{
  for (unsigned i = 0; i < count; i++) {
    struct packet_slot *slot = &queue->slot[i];
    *slot = apply_hint(hint, i);
    uint8_t *front = slot_front(queue, i);
    struct iovec *iov = queue->rx_iov[i];
    size_t rest = HARP_FRAME_MAX - (size_t)slot->header - slot->placed;
    iov[0].iov_base = front - slot->header - PACKET_VNET;
    iov[0].iov_len = PACKET_VNET + (size_t)slot->header + (slot->placed ? 0 : rest);
    iov[1] = (struct iovec){.iov_base = slot->hint, .iov_len = slot->placed};
    iov[2] = (struct iovec){.iov_base = front + slot->placed, .iov_len = rest};
    queue->rx[i].msg_hdr.msg_iovlen = slot->placed ? 3 : 1;
  }
}

/* Result of the hint for one frame. */
struct verdict {
  bool right;   /* the payload begins after header_length bytes and lies at the hint's address */
  bool overran; /* the frame was longer than its place, whatever its layout */
};

static struct verdict judge(const struct packet_slot *slot, const uint8_t *frame, uint32_t length)
{
  struct harp_tcp_fields peek;
  struct verdict verdict = {0};
  if (!harp_frame_tcp_fields(frame, slot->header, &peek))
    return verdict;
  verdict.overran = length > peek.header_length + slot->placed;
  verdict.right = peek.header_length == slot->header && !verdict.overran;
  return verdict;
}

/*
 * *displaced: an earlier frame of the burst was longer than its place, so its last bytes belong
 * where later frames were put. The later frames must move out before the earlier one is delivered.
 * This function sets *displaced for the frames that follow.
 */
static void report(struct packet_queue *queue, unsigned i, bool *displaced,
                   struct harp_rx_frame *out)
{
  const struct packet_slot *slot = &queue->slot[i];
  uint8_t *front = slot_front(queue, i);
  uint8_t *frame = front - slot->header;
  uint32_t length = queue->rx[i].msg_len - PACKET_VNET;
  struct virtio_net_hdr vnet;
  memcpy(&vnet, frame - PACKET_VNET, sizeof(vnet));
  bool segments = (vnet.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_TCPV4;
  *out = (struct harp_rx_frame){
      .header = frame,
      .header_length = length,
      .payload = frame + length,
      .segment_size = segments ? vnet.gso_size : 0,
      /* NEEDS_CSUM: the frame never left this host, or the kernel merged segments that it had
       * checked. The checksum field is then incomplete. */
      .checksum_good = (vnet.flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID)) !=
                       0,
  };
  if (length <= slot->header || !slot->placed)
    return;
  uint32_t behind = length - slot->header;
  struct verdict verdict = judge(slot, frame, length);
  if (verdict.right && !*displaced) {
    out->header_length = slot->header;
    out->payload = slot->hint;
    out->payload_length = behind;
  } else {
    memcpy(front, slot->hint, behind < slot->placed ? behind : slot->placed);
  }
  *displaced |= verdict.overran;
}

static bool arp_is_due(struct packet_queue *queue)
{
  if (queue->arp_fd < 0)
    return false;
  unsigned left = atomic_load_explicit(&queue->arp_in, memory_order_relaxed);
  atomic_store_explicit(&queue->arp_in, left > 0 ? left - 1 : PACKET_ARP_PERIOD,
                        memory_order_relaxed);
  return left == 0;
}

/* The socket reports ENETDOWN only once, so HARP must ask whether the interface is up again. The
 * interface may also be gone, and then the port is dead. */
static int check_link(const struct packet_port *packet, struct packet_queue *queue)
{
  int state = harp_netdev_state(packet->sockets.control, packet->sockets.device.index);
  queue->down = state <= 0;
  if (state < 0)
    return -ENODEV;
  return state == 0 ? -ENETDOWN : 0;
}

static int receive_failed(const struct packet_port *packet, struct packet_queue *queue, int error)
{
  switch (error) {
  case EAGAIN:
  case EINTR: return 0;
  case ENETDOWN: return check_link(packet, queue);
  case ENXIO:
  case ENODEV: return -ENODEV;
  default: return -EIO;
  }
}

/* ARP frames have no vnet header. Bytes after PACKET_ARP_BYTES are padding. Returns the number of
 * frames, or as receive_failed. */
static int receive_arp(const struct packet_port *packet, struct packet_queue *queue,
                       struct harp_rx_frame *frames, int max)
{
  int n = 0;
  while (n < max && n < PACKET_ARP_BURST) {
    ssize_t got = recv(queue->arp_fd, queue->arp[n], PACKET_ARP_BYTES, MSG_DONTWAIT);
    if (got < 0) {
      int rc = receive_failed(packet, queue, errno);
      return n ? n : rc;
    }
    frames[n] = (struct harp_rx_frame){
        .header = queue->arp[n],
        .header_length = (uint32_t)got,
        .payload = queue->arp[n] + got,
    };
    n++;
  }
  return n;
}

/* Requests twice the last burst, so that short bursts do not pay for the preparation of long
 * ones. */
static void adapt_burst(struct packet_queue *queue, unsigned got)
{
  unsigned next = got * 2 < LEAST_BURST ? LEAST_BURST : got * 2;
  queue->burst = next > PACKET_BURST ? PACKET_BURST : next;
}

int harp_packet_receive(struct harp_port *port, unsigned number, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max)
{
  struct packet_port *packet = (struct packet_port *)port;
  struct packet_queue *queue = &packet->queues[number];
  int n = arp_is_due(queue) ? receive_arp(packet, queue, frames, max) : 0;
  if (n < 0)
    return n;
  unsigned room = (unsigned)(max - n);
  unsigned count = room < queue->burst ? room : queue->burst;
  if (count == 0)
    return n;
  if (queue->down) {
    int rc = check_link(packet, queue);
    if (rc < 0)
      return rc;
  }
  prepare(queue, hint, count);
  int got = harp_recvmmsg(queue->fd, queue->rx, count, MSG_DONTWAIT);
  if (got < 0) {
    int rc = receive_failed(packet, queue, errno);
    return n ? n : rc;
  }
  adapt_burst(queue, (unsigned)got);
  bool displaced = false;
  for (unsigned i = 0; i < (unsigned)got; i++) {
    if (queue->rx[i].msg_hdr.msg_flags & MSG_TRUNC) {
      queue->counts.rx_lost++; /* longer than any IPv4 packet */
      continue;
    }
    if (packet->sockets.other_count >
        0) /* a frame for our address may have another interface's MAC */
      memcpy(slot_front(queue, i) - queue->slot[i].header + ETH_DST, port->info.mac, 6);
    report(queue, i, &displaced, &frames[n++]);
  }
  return n;
}
