/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/packet/packet_place.h"

#include <string.h>

#include "dpdk_glue/big_endian.h"
#include "dpdk_glue/segment_headers.h"

enum { LEAST_HEADERS = ETH_HEADER + IP_HEADER + TCP_HEADER /* without options */ };

uint8_t *harp_packet_front(struct packet_queue *queue, unsigned i)
{
  return queue->slots + (size_t)i * PACKET_SLOT + PACKET_HEADER_ROOM;
}

/* --- Before the call --- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Adds the hint's second buffer to the slot of a frame that fills the first one after `left` bytes.
 * The first part stays in the slot if it is shorter than a header, because a split needs room for a
 * header in the gap. This frame ends the burst, so its second part may be longer than the stride.
 */
static void apply_next(struct packet_slot *slot, const struct harp_rx_hint *hint, size_t left)
{
  bool kept = left < slot->header;
  size_t before = left + hint->gap;
  if (!hint->next || before >= hint->stride) {
    return;
  }
  size_t placed = least(hint->next_length, HARP_FRAME_MAX - slot->header - before);
  if (placed < 2 * (size_t)slot->header) { /* two headers must fit into its gap */
    return;
  }
  slot->placed = kept ? 0 : (uint32_t)left;
  slot->gap = (uint32_t)(kept ? before : hint->gap);
  slot->next_placed = (uint32_t)placed;
  slot->next = hint->next;
}

/* Computes what the hint says about frame i. */
static struct packet_slot apply_hint(const struct harp_rx_hint *hint, unsigned i)
{
  struct packet_slot slot = {0};
  if (!hint || !(hint->payload || hint->next) || hint->header_length < LEAST_HEADERS ||
      hint->header_length > PACKET_HEADER_ROOM - PACKET_VNET) {
    return slot;
  }
  size_t offset = i * hint->stride;
  if (offset > hint->length) {
    return slot;
  }
  size_t left = hint->length - offset;
  slot.header = hint->header_length;
  slot.hint = hint->payload + offset;
  slot.placed = (uint32_t)least(least(left, hint->stride), HARP_FRAME_MAX - slot.header);
  if (left < hint->stride) {
    apply_next(&slot, hint, left);
  }
  if (!slot.placed && !slot.gap) {
    slot.header = 0;
  }
  return slot;
}

/* Appends memory to a scatter list. */
static void append(struct iovec *iov, size_t *count, uint8_t *base, size_t length)
{
  struct iovec *last = *count ? &iov[*count - 1] : NULL;
  if (last && (uint8_t *)last->iov_base + last->iov_len == base) {
    last->iov_len += length;
  } else if (length) {
    iov[(*count)++] = (struct iovec){.iov_base = base, .iov_len = length};
  }
}

unsigned harp_packet_prepare(struct packet_queue *queue, const struct harp_rx_hint *hint,
                             unsigned count)
{
  for (unsigned i = 0; i < count; i++) {
    struct packet_slot *slot = &queue->slot[i];
    *slot = apply_hint(hint, i);
    uint8_t *front = harp_packet_front(queue, i);
    struct iovec *iov = queue->rx_iov[i];
    size_t used = (size_t)slot->placed + slot->gap + slot->next_placed, pieces = 0;
    append(iov, &pieces, front - slot->header - PACKET_VNET, PACKET_VNET + (size_t)slot->header);
    append(iov, &pieces, slot->hint, slot->placed);
    append(iov, &pieces, front + slot->placed, slot->gap);
    append(iov, &pieces, slot->next, slot->next_placed);
    append(iov, &pieces, front + used, HARP_FRAME_MAX - (size_t)slot->header - used);
    queue->rx[i].msg_hdr.msg_iovlen = pieces;
    if (hint && (i + 1) * hint->stride >= hint->length) {
      return i + 1;
    }
  }
  return count;
}

/* --- After the call --- */

/* A frame as it was received. */
struct received {
  const struct packet_slot *slot;
  uint8_t *front, *header;
  uint32_t behind; /* bytes behind the hint's header_length */
  struct harp_tcp_fields tcp;
};

static void repair(const struct received *frame)
{
  const struct packet_slot *slot = frame->slot;
  size_t before = (size_t)slot->placed + slot->gap;
  if (slot->placed) {
    memcpy(frame->front, slot->hint, least(frame->behind, slot->placed));
  }
  if (frame->behind > before && slot->next_placed) {
    memcpy(frame->front + before, slot->next, least(frame->behind - before, slot->next_placed));
  }
}

/* Whether the frame ends where its IPv4 packet ends. The bytes of a trailer are not payload. */
static bool is_whole_packet(const struct received *frame)
{
  return ETH_HEADER + (uint32_t)harp_read16(frame->header + ETH_HEADER + IP_TOTAL_LENGTH) ==
         frame->slot->header + frame->behind;
}

/* Whether the frame can be reported in pieces: an ordinary segment with a good checksum, whose
 * bytes reach far enough into the second place to leave room for a header there. */
static bool may_split(const struct received *frame, const struct harp_rx_frame *whole)
{
  const struct packet_slot *slot = frame->slot;
  uint8_t flags = frame->header[frame->tcp.start + TCP_FLAG_BYTE] & ~FLAG_PSH;
  return whole->checksum_good && flags == FLAG_ACK && is_whole_packet(frame) &&
         frame->behind >= slot->placed + slot->gap + 2 * (uint32_t)slot->header;
}

/* Makes a header for `length` bytes of payload that begin `skipped` bytes after the frame's. */
static void write_header(const struct received *frame, const uint8_t *original, uint8_t *to,
                         uint32_t skipped, uint32_t length)
{
  uint32_t size = frame->slot->header;
  memcpy(to, original, size);
  uint8_t *ip = to + ETH_HEADER, *tcp = to + frame->tcp.start;
  harp_complete_ip(ip, (uint32_t)(tcp - ip), size - ETH_HEADER + length);
  harp_write32(tcp + TCP_SEQUENCE, harp_read32(tcp + TCP_SEQUENCE) + skipped);
}

/* Splits the frame *out into several. */
static int split(const struct received *frame, struct harp_rx_frame *out)
{
  const struct packet_slot *slot = frame->slot;
  const struct harp_rx_frame whole = *out;
  uint32_t size = slot->header, before = slot->placed + slot->gap;
  uint32_t next = (uint32_t)least(frame->behind - before, slot->next_placed);
  struct {
    uint8_t *header, *placed; /* placed NULL: the payload follows the header */
    uint32_t skipped, length;
  } pieces[PACKET_PIECES] = {
      {frame->header, slot->hint, 0, slot->placed},
      {frame->front + slot->placed - size, NULL, slot->placed, slot->gap},
      {frame->front + before, slot->next, before, next},
      {frame->front + before + next - size, NULL, before + next, frame->behind - before - next},
  };
  uint8_t original[PACKET_HEADER_ROOM];
  memcpy(original, frame->header, size);
  int n = 0;
  for (int i = 0; i < PACKET_PIECES; i++) {
    uint8_t *header = pieces[i].header;
    uint32_t length = pieces[i].length;
    if (!length) {
      continue;
    }
    write_header(frame, original, header, pieces[i].skipped, length);
    out[n] = whole;
    out[n].header = header;
    out[n].header_length = size + (pieces[i].placed ? 0 : length);
    out[n].payload = pieces[i].placed ? pieces[i].placed : header + size + length;
    out[n++].payload_length = pieces[i].placed ? length : 0;
  }
  return n;
}

int harp_packet_report(struct packet_queue *queue, unsigned i, bool *displaced,
                       struct harp_rx_frame *out)
{
  const struct packet_slot *slot = &queue->slot[i];
  struct received frame = {.slot = slot, .front = harp_packet_front(queue, i)};
  frame.header = frame.front - slot->header;
  uint32_t length = queue->rx[i].msg_len - PACKET_VNET;
  struct virtio_net_hdr vnet;
  memcpy(&vnet, frame.header - PACKET_VNET, sizeof(vnet));
  bool segments = (vnet.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_TCPV4;
  *out = (struct harp_rx_frame){
      .header = frame.header,
      .header_length = length,
      .payload = frame.header + length,
      .segment_size = segments ? vnet.gso_size : 0,
      /* NEEDS_CSUM: the frame never left this host, or the kernel merged segments that it had
       * checked. The checksum field is then incomplete. */
      .checksum_good = (vnet.flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID)) !=
                       0,
  };
  if (length <= slot->header || !slot->header) {
    return 1;
  }
  frame.behind = length - slot->header;
  bool is_tcp = harp_frame_tcp_fields(frame.header, slot->header, &frame.tcp);
  bool overran = is_tcp &&
                 length > frame.tcp.header_length + slot->placed + slot->gap + slot->next_placed;
  bool right = is_tcp && frame.tcp.header_length == slot->header && !*displaced;
  *displaced |= overran;
  if (right && slot->gap && may_split(&frame, out)) {
    return split(&frame, out);
  }
  if (right && slot->placed && frame.behind <= slot->placed) {
    out->header_length = slot->header;
    out->payload = slot->hint;
    out->payload_length = frame.behind;
  } else {
    repair(&frame);
  }
  return 1;
}
