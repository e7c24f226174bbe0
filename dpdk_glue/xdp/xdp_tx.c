/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending. An AF_XDP socket in copy mode takes only segments of the wire's size, and the kernel
 * passes them to the driver one by one. A packet socket takes up to 64 KiB at a time, and the
 * device or the kernel segments them. The packet socket is faster, so it sends in copy mode.
 *
 * An AF_XDP socket in zero-copy mode sends without any packet of the kernel. A frame is copied into
 * chunks that the NIC reads. This copy also cuts a large segment into wire segments and sums their
 * payload, so that each byte is touched once. One system call announces a burst of frames.
 */
#include <errno.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>

#include "dpdk_glue/big_endian.h"
#include "dpdk_glue/segment_headers.h"
#include "dpdk_glue/xdp/xdp.h"
#include "harp/stack/ip/checksum.h"

enum { CALL_MOST = 32 /* frames that one call sends in copy mode */ };

/* --- Chunks --- */

/* Takes chunks back that the device has sent. */
static void reap(struct xdp_port *xdp)
{
  struct xdp_ring *done = &xdp->sockets[0].completion;
  uint32_t count = xdp_ring_peek(done, XDP_TX_CHUNKS);
  for (uint32_t i = 0; i < count; i++) {
    xdp->umem.free[xdp->umem.free_count++] = *xdp_address(done, done->mine++);
  }
  if (count) {
    xdp_ring_release(done);
  }
}

static uint32_t count_waiting(const struct xdp_ring *tx)
{
  return tx->mine - atomic_load_explicit(tx->consumer, memory_order_acquire);
}

/* After an error of send, whether another call makes sense. */
static bool may_send_more(struct xdp_port *xdp, int error)
{
  switch (error) {
  case EAGAIN: /* the call has sent its share, or the device is full */
  case EINTR: return true;
  case EBUSY: xdp->counts.tx_errors++; return true; /* the device has dropped one frame */
  case ENOBUFS: return false;
  case ENETDOWN:
    xdp->counts.tx_errors++;
    xdp->link = -ENETDOWN;
    return false;
  case ENXIO: /* the device is gone, and the socket is no longer bound */
  case ENODEV:
    xdp->counts.tx_errors++;
    xdp->link = -ENODEV;
    return false;
  default: xdp->counts.tx_errors++; return false;
  }
}

/* Announces all descriptors. In copy mode a call sends some of them, and the next call continues.
 * What the device does not take now, a later flush announces again. */
static void kick(struct xdp_port *xdp)
{
  struct xdp_socket *xsk = &xdp->sockets[0];
  xdp_ring_submit(&xsk->tx);
  xdp->unsent = 0;
  if (!xdp_needs_wakeup(&xsk->tx)) {
    return;
  }
  uint32_t calls = xsk->zero_copy ? 1 : count_waiting(&xsk->tx) / CALL_MOST + 2;
  for (; calls && count_waiting(&xsk->tx); calls--) {
    if (send(xsk->fd, NULL, 0, MSG_DONTWAIT) < 0 && !may_send_more(xdp, errno)) {
      return;
    }
  }
}

/* Whether there are chunks and descriptors for `count` more buffers. */
static bool has_room(struct xdp_port *xdp, uint32_t count)
{
  struct xdp_ring *tx = &xdp->sockets[0].tx;
  if (xdp->umem.free_count < count) {
    reap(xdp);
  }
  if (xdp->umem.free_count >= count && xdp_ring_has_room(tx, count)) {
    return true;
  }
  kick(xdp);
  reap(xdp);
  return xdp->umem.free_count >= count && xdp_ring_has_room(tx, count);
}

/* --- Copying --- */

/* The rest of a frame's gather list. */
struct source {
  const struct iovec *iov;
  size_t offset; /* bytes of *iov that are copied */
};

/* Where the next bytes of a frame go. */
struct target {
  struct xdp_port *xdp;
  uint8_t *at;
  uint32_t room;         /* bytes left in the chunk */
  struct xdp_desc *desc; /* of the chunk */
};

static void begin_chunk(struct target *target)
{
  struct xdp_port *xdp = target->xdp;
  struct xdp_ring *tx = &xdp->sockets[0].tx;
  uint64_t address = xdp->umem.free[--xdp->umem.free_count];
  target->desc = xdp_desc(tx, tx->mine++);
  *target->desc = (struct xdp_desc){.addr = address};
  target->at = xdp->umem.memory + address;
  target->room = xdp->umem.chunk;
  xdp->unsent++;
}

/* Copies the next `length` bytes of the source, and adds them to the sum. */
static void copy(struct target *target, struct source *source, uint32_t length,
                 struct harp_sum *sum)
{
  while (length > 0) {
    size_t piece = source->iov->iov_len - source->offset;
    if (piece == 0) {
      source->iov++;
      source->offset = 0;
      continue;
    }
    if (target->room == 0) {
      target->desc->options |= XDP_PKT_CONTD;
      begin_chunk(target);
    }
    piece = piece < length ? piece : length;
    piece = piece < target->room ? piece : target->room;
    const uint8_t *from = (const uint8_t *)source->iov->iov_base + source->offset;
    if (sum) {
      harp_sum_copy(sum, target->at, from, piece);
    } else {
      memcpy(target->at, from, piece);
    }
    target->at += piece;
    target->room -= (uint32_t)piece;
    target->desc->len += (uint32_t)piece;
    source->offset += piece;
    length -= (uint32_t)piece;
  }
}

/* What the segments of a frame have in common. */
struct cut {
  struct target target;
  struct source source;
  uint16_t header_length, ip_header;
  uint8_t flags;     /* TCP flags of the last segment */
  uint16_t id;       /* IPv4 identification of the first segment */
  uint32_t sequence; /* of the first segment */
};

/* Completes the headers of a segment, which were copied to `header`. */
static void complete(uint8_t *header, const struct cut *cut, uint32_t number, uint32_t offset,
                     uint32_t payload, bool last, struct harp_sum sum)
{
  uint8_t *ip = header + ETH_HEADER, *tcp = ip + cut->ip_header;
  uint32_t length = cut->header_length - ETH_HEADER - cut->ip_header + payload;
  harp_write16(ip + IP_ID, cut->id + number);
  harp_complete_ip(ip, cut->ip_header, cut->ip_header + length);
  harp_write32(tcp + TCP_SEQUENCE, cut->sequence + offset);
  tcp[TCP_FLAG_BYTE] = last ? cut->flags : cut->flags & ~(FLAG_FIN | FLAG_PSH);
  memset(tcp + TCP_CHECKSUM, 0, 2);
  struct harp_sum all = {.value = harp_pseudo_sum(ip, length)};
  harp_sum_add(&all, tcp, length - payload);
  uint16_t checksum = (uint16_t)~harp_sum_of_two(harp_sum_fold(&all), harp_sum_fold(&sum));
  memcpy(tcp + TCP_CHECKSUM, &checksum, sizeof(checksum));
}

/* Writes one segment. Its headers are at the start of the frame. */
static void write_segment(struct cut *cut, const struct harp_tx_frame *frame, uint32_t number,
                          uint32_t offset, uint32_t payload, bool last)
{
  struct harp_sum sum = {0};
  begin_chunk(&cut->target);
  uint8_t *header = cut->target.at;
  memcpy(header, frame->iov[0].iov_base, cut->header_length);
  cut->target.at += cut->header_length;
  cut->target.room -= cut->header_length;
  cut->target.desc->len = cut->header_length;
  copy(&cut->target, &cut->source, payload, &sum);
  complete(header, cut, number, offset, payload, last, sum);
}

static uint32_t chunks_for(const struct xdp_port *xdp, uint32_t bytes)
{
  return (bytes + xdp->umem.chunk - 1) / xdp->umem.chunk;
}

/* A frame whose checksum is complete, such as an ARP packet. */
static int send_as_it_is(struct xdp_port *xdp, const struct harp_tx_frame *frame)
{
  struct target target = {.xdp = xdp};
  struct source source = {.iov = frame->iov};
  if (!has_room(xdp, chunks_for(xdp, frame->length))) {
    return -EAGAIN;
  }
  begin_chunk(&target);
  copy(&target, &source, frame->length, NULL);
  return 0;
}

static int send_segments(struct xdp_port *xdp, const struct harp_tx_frame *frame)
{
  uint32_t payload = frame->length - frame->header_length;
  uint32_t size = frame->segment_size ? frame->segment_size : payload;
  uint32_t count = payload > size ? (payload + size - 1) / size : 1;
  const uint8_t *header = frame->iov[0].iov_base, *ip = header + ETH_HEADER;
  uint32_t chunks = count * chunks_for(xdp, frame->header_length + size);
  if (chunks > XDP_TX_CHUNKS) {
    return -EMSGSIZE;
  }
  if (!has_room(xdp, chunks)) {
    return -EAGAIN;
  }
  struct cut cut = {
      .target = {.xdp = xdp},
      .source = {.iov = frame->iov, .offset = frame->header_length},
      .header_length = frame->header_length,
      .ip_header = (uint16_t)((ip[0] & 0xf) * 4),
      .id = harp_read16(ip + IP_ID),
  };
  cut.flags = ip[cut.ip_header + TCP_FLAG_BYTE];
  cut.sequence = harp_read32(ip + cut.ip_header + TCP_SEQUENCE);
  for (uint32_t i = 0, offset = 0; i < count; i++, offset += size) {
    bool last = i + 1 == count;
    write_segment(&cut, frame, i, offset, last ? payload - offset : size, last);
  }
  return 0;
}

static int try_send(struct xdp_port *xdp, const struct harp_tx_frame *frame)
{
  uint32_t wire = frame->segment_size ? frame->header_length + (uint32_t)frame->segment_size
                                      : frame->length;
  wire = wire < frame->length ? wire : frame->length;
  if (xdp->link < 0) {
    return xdp->link;
  }
  if (frame->length > HARP_FRAME_MAX || wire > (uint32_t)xdp->port.info.mtu + ETH_HEADER) {
    return -EMSGSIZE;
  }
  return frame->checksum_needed ? send_segments(xdp, frame) : send_as_it_is(xdp, frame);
}

/* --- By the packet socket --- */

void harp_xdp_tx_init(struct xdp_port *xdp)
{
  int on = 0;
  socklen_t length = sizeof(on);
  getsockopt(xdp->other_fd, SOL_PACKET, PACKET_VNET_HDR, &on, &length);
  xdp->has_vnet = on != 0; /* an agent of this release has set it */
  if (!on) {
    on = 1;
    /* A job's seccomp profile may forbid this call (docs/agent.md). */
    int rc = setsockopt(xdp->other_fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on));
    xdp->has_vnet = rc == 0;
  }
  xdp->sends_packets = xdp->spec.sender == XDP_SENDER_AUTO && !xdp->sockets[0].zero_copy &&
                       xdp->has_vnet;
  harp_packet_tx_init(&xdp->packet_tx, &xdp->device, xdp->other_fd);
}

/* Whether the packet socket sends the frame. Other processes of this host do not see the frames of
 * an AF_XDP socket, also not broadcasts. */
static bool is_packet(const struct xdp_port *xdp, const struct harp_tx_frame *frame)
{
  enum { GROUP = 1 /* in the first byte of a MAC address */ };
  const uint8_t *to = (const uint8_t *)frame->iov[0].iov_base + ETH_DST;
  const uint8_t *own = xdp->port.info.mac;
  return xdp->sends_packets ||
         (xdp->has_vnet && (to[0] & GROUP || memcmp(to, own, sizeof(xdp->port.info.mac)) == 0));
}

/* Remembers that the link is down, or that the device is gone. Returns rc. */
static int noted(struct xdp_port *xdp, int rc)
{
  if (rc == -ENETDOWN || rc == -ENODEV) {
    xdp->link = rc;
  }
  return rc;
}

/* --- The calls of port.h --- */

int harp_xdp_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  if (is_packet(xdp, frame)) {
    return xdp->link < 0 ? xdp->link : noted(xdp, harp_packet_tx_send(&xdp->packet_tx, frame));
  }
  int rc = try_send(xdp, frame);
  if (rc < 0) {
    xdp->counts.tx_full += rc == -EAGAIN;
    xdp->counts.tx_errors += rc != -EAGAIN;
    return rc;
  }
  xdp->counts.tx_copied += frame->length - frame->header_length;
  if (xdp->unsent >= XDP_BURST) {
    kick(xdp);
  }
  return 0;
}

bool harp_xdp_flush_all(struct xdp_port *xdp)
{
  bool all_sent = noted(xdp, harp_packet_tx_flush(&xdp->packet_tx)) != -EAGAIN;
  if (xdp->sends_packets) {
    return all_sent;
  }
  const struct xdp_socket *xsk = &xdp->sockets[0];
  if (xdp->link == 0 && (xdp->unsent || count_waiting(&xsk->tx))) {
    kick(xdp);
  }
  return all_sent && (xsk->zero_copy || xdp->link < 0 || count_waiting(&xsk->tx) == 0);
}

void harp_xdp_flush(struct harp_port *port, unsigned queue)
{
  harp_xdp_flush_all(harp_xdp_of(port));
}
