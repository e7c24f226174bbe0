/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving. The stack reads a frame where the kernel or the NIC has put it, and copies the payload
 * from there. No device has verified its checksum, so the stack sums while it copies.
 *
 * A frame that does not fit into one chunk arrives in several: a frame of a large MTU, or segments
 * that the kernel has merged or never cut. Each chunk becomes a segment: the headers are written
 * again into the headroom in front of its payload. The checksum covers all chunks, so it is
 * verified here.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "dpdk_glue/big_endian.h"
#include "dpdk_glue/kernel/netdev.h"
#include "dpdk_glue/segment_headers.h"
#include "dpdk_glue/xdp/xdp.h"
#include "harp/stack/ip/checksum.h"

static uint8_t *bytes_at(const struct xdp_port *xdp, uint64_t address)
{
  return xdp->umem.memory + address;
}

/* --- Chunks --- */

/* Takes the next chunk of the ring. drain publishes that the kernel may use the entry again. */
static const struct xdp_desc *take(struct xdp_socket *xsk)
{
  return xdp_desc(&xsk->rx, xsk->rx.mine++);
}

/* Returns a chunk to the kernel. The fill ring has room for all chunks of its socket. */
static void refill(const struct xdp_port *xdp, struct xdp_socket *xsk, uint64_t address)
{
  *xdp_address(&xsk->fill, xsk->fill.mine++) = address / xdp->umem.chunk * xdp->umem.chunk;
}

/* The stack reads a chunk until the next receive. */
static void hold(struct xdp_port *xdp, struct xdp_socket *xsk, uint64_t address)
{
  xdp->held[xdp->held_count++] = (struct xdp_rx_chunk){xsk, address};
}

static void recycle(struct xdp_port *xdp)
{
  struct xdp_socket *last = NULL;
  for (unsigned i = 0; i < xdp->held_count; i++) {
    struct xdp_socket *xsk = xdp->held[i].socket;
    refill(xdp, xsk, xdp->held[i].address);
    if (last && last != xsk) {
      xdp_ring_submit(&last->fill);
    }
    last = xsk;
  }
  if (last) {
    xdp_ring_submit(&last->fill);
  }
  xdp->held_count = 0;
}

/* --- One frame --- */

static struct harp_rx_frame whole(const uint8_t *frame, uint32_t length, bool good)
{
  return (struct harp_rx_frame){
      .header = frame,
      .header_length = length,
      .payload = frame + length,
      .checksum_good = good,
  };
}

/* A frame with an incomplete checksum comes from this machine, or the kernel has merged segments
 * that it had checked. It was on no wire since then that could damage it. A damaged frame looks
 * like one with a probability of 1/65536, and TCP's checksum misses a damaged frame with the same
 * probability. */
static struct harp_rx_frame single(struct xdp_port *xdp, struct xdp_socket *xsk)
{
  const struct xdp_desc *desc = take(xsk);
  const uint8_t *frame = bytes_at(xdp, desc->addr);
  struct harp_tcp_fields fields;
  bool good = xdp->local_sender && harp_frame_tcp_fields(frame, desc->len, &fields) &&
              harp_is_incomplete(frame, &fields);
  hold(xdp, xsk, desc->addr);
  return whole(frame, desc->len, good);
}

/* --- A frame in several chunks --- */

/* Whether the TCP checksum over all chunks is right, or left incomplete by a sender on this
 * machine. Bytes behind the IPv4 packet do not count. */
static bool has_good_sum(const struct xdp_port *xdp, const struct xdp_socket *xsk, unsigned count,
                         const struct harp_tcp_fields *fields)
{
  const struct xdp_ring *rx = &xsk->rx;
  const uint8_t *frame = bytes_at(xdp, xdp_desc(rx, rx->mine)->addr);
  uint32_t left = harp_read16(frame + ETH_HEADER + IP_TOTAL_LENGTH) + ETH_HEADER - fields->start;
  struct harp_sum sum = {.value = harp_pseudo_sum(frame + ETH_HEADER, left)};
  if (xdp->local_sender && harp_is_incomplete(frame, fields)) {
    return true;
  }
  for (unsigned i = 0; i < count && left; i++) {
    const struct xdp_desc *chunk = xdp_desc(rx, rx->mine + i);
    uint32_t skip = i ? 0 : fields->start, length = chunk->len - skip;
    length = length < left ? length : left;
    harp_sum_add(&sum, bytes_at(xdp, chunk->addr) + skip, length);
    left -= length;
  }
  return left == 0 && harp_sum_fold(&sum) == 0xffff;
}

/* Begins with the frame in the next `count` chunks. false: its headers or its bytes are damaged.
 * Nothing behind this function would notice, because it writes new checksums. */
static bool begin_long(struct xdp_port *xdp, struct xdp_socket *xsk, unsigned count)
{
  const struct xdp_desc *first = xdp_desc(&xsk->rx, xsk->rx.mine);
  const uint8_t *frame = bytes_at(xdp, first->addr), *ip = frame + ETH_HEADER;
  struct xdp_long *rest = &xsk->rest;
  struct harp_tcp_fields *fields = &rest->fields;
  if (!harp_frame_tcp_fields(frame, first->len, fields) || fields->header_length > first->len ||
      harp_read16(ip + IP_TOTAL_LENGTH) + ETH_HEADER < fields->header_length ||
      harp_checksum(ip, (size_t)(fields->start - ETH_HEADER)) != 0 ||
      !has_good_sum(xdp, xsk, count, fields)) {
    return false;
  }
  memcpy(rest->header, frame, fields->header_length);
  rest->sequence = harp_read32(frame + fields->start + TCP_SEQUENCE);
  rest->left = harp_read16(ip + IP_TOTAL_LENGTH) + ETH_HEADER - fields->header_length;
  rest->chunks = count;
  rest->begun = false;
  return true;
}

/* Writes the headers of a segment with `payload` bytes to frame. */
static void write_headers(uint8_t *frame, const struct xdp_long *rest, uint32_t payload)
{
  const struct harp_tcp_fields *fields = &rest->fields;
  uint8_t *ip = frame + ETH_HEADER;
  memcpy(frame, rest->header, fields->header_length);
  harp_complete_ip(ip, (uint32_t)(fields->start - ETH_HEADER),
                   fields->header_length - ETH_HEADER + payload);
  harp_write32(frame + fields->start + TCP_SEQUENCE, rest->sequence);
  if (rest->left > payload) {
    frame[fields->start + TCP_FLAG_BYTE] &= (uint8_t)~(FLAG_FIN | FLAG_PSH);
  }
}

/* Makes a segment of the next chunk of a long frame. false: the chunk has only padding. */
static bool next_segment(struct xdp_port *xdp, struct xdp_socket *xsk, struct harp_rx_frame *out)
{
  struct xdp_long *rest = &xsk->rest;
  const struct xdp_desc *chunk = take(xsk);
  uint32_t headers = rest->fields.header_length, payload = chunk->len;
  uint8_t *frame = bytes_at(xdp, chunk->addr) - headers;
  bool first = !rest->begun;
  if (first) {
    frame += headers;
    payload -= headers;
  }
  rest->begun = true;
  rest->chunks--;
  payload = payload < rest->left ? payload : rest->left;
  if (payload == 0 && !first) {
    refill(xdp, xsk, chunk->addr);
    return false;
  }
  write_headers(frame, rest, payload);
  rest->sequence += payload;
  rest->left -= payload;
  hold(xdp, xsk, chunk->addr);
  *out = whole(frame, headers + payload, true);
  return true;
}

/* --- A burst --- */

/* The number of chunks of the next frame in the ring; 0: there is none. The kernel publishes only
 * whole frames. */
static unsigned count_chunks(struct xdp_ring *rx)
{
  for (uint32_t i = 0; xdp_ring_peek(rx, i + 1) == i + 1; i++) {
    if (!(xdp_desc(rx, rx->mine + i)->options & XDP_PKT_CONTD)) {
      return i + 1;
    }
  }
  return 0;
}

static void drop(struct xdp_port *xdp, struct xdp_socket *xsk, unsigned count)
{
  while (count--) {
    refill(xdp, xsk, take(xsk)->addr);
  }
  xdp->counts.rx_lost++;
}

/* Takes the frames that wait at a socket, as many as there is room for. A long frame may need more
 * room than one receive has; the next one continues. */
static int drain(struct xdp_port *xdp, struct xdp_socket *xsk, struct harp_rx_frame *frames,
                 int max)
{
  const uint32_t before = xsk->rx.mine;
  int n = 0;
  while (n < max) {
    if (xsk->rest.chunks > 0) {
      n += next_segment(xdp, xsk, &frames[n]);
      continue;
    }
    unsigned count = count_chunks(&xsk->rx);
    if (count == 0) {
      break;
    }
    if (count == 1) {
      frames[n++] = single(xdp, xsk);
    } else if (!begin_long(xdp, xsk, count)) {
      drop(xdp, xsk, count);
    }
  }
  if (xsk->rx.mine != before) {
    xdp_ring_release(&xsk->rx);
    xdp_ring_submit(&xsk->fill);
  }
  return n;
}

/* --- The packet socket --- */

static bool other_is_due(struct xdp_port *xdp)
{
  unsigned left = atomic_load_explicit(&xdp->other_in, memory_order_relaxed);
  atomic_store_explicit(&xdp->other_in, left > 0 ? left - 1 : XDP_OTHER_PERIOD,
                        memory_order_relaxed);
  return left == 0;
}

/* The interface may be down for a while, or be gone for good. The sockets report it only once. */
static int check_link(struct xdp_port *xdp)
{
  atomic_store_explicit(&xdp->lost_address, false, memory_order_relaxed);
  xdp->link = harp_netdev_check_link(xdp->control_fd, xdp->other_fd, &xdp->device, &xdp->port.info);
  return xdp->link;
}

static int receive_others(struct xdp_port *xdp, struct harp_rx_frame *frames, int max)
{
  const size_t header = xdp->has_vnet ? PACKET_VNET : 0;
  int n = 0;
  while (n < max && n < XDP_OTHER_BURST) {
    ssize_t got = recv(xdp->other_fd, xdp->other[n], header + XDP_OTHER_BYTES, MSG_DONTWAIT);
    if (got < 0 && (errno == ENETDOWN || errno == ENODEV || errno == ENXIO)) {
      return n ? n : check_link(xdp);
    }
    if (got < 0) {
      break;
    }
    struct virtio_net_hdr vnet;
    memcpy(&vnet, xdp->other[n], sizeof(vnet));
    bool good = xdp->has_vnet &&
                vnet.flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID);
    frames[n] = whole(xdp->other[n] + header, (uint32_t)((size_t)got - header), good);
    frames[n].segment_size = xdp->has_vnet ? vnet.gso_size : 0;
    n++;
  }
  if (n > 0) {
    atomic_store_explicit(&xdp->other_in, 0, memory_order_relaxed); /* more may follow */
  }
  return n;
}

int harp_xdp_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                     struct harp_rx_frame *frames, int max)
{
  struct xdp_port *xdp = harp_xdp_of(port);
  recycle(xdp);
  bool changed = atomic_load_explicit(&xdp->lost_address, memory_order_relaxed);
  int n = xdp->link < 0 || changed ? check_link(xdp) : 0;
  if (n == 0 && other_is_due(xdp)) {
    n = receive_others(xdp, frames, max);
  }
  if (n < 0) {
    return n;
  }
  max = max < XDP_BURST ? max : XDP_BURST;
  for (unsigned i = 0; i < xdp->socket_count && n < max; i++) {
    struct xdp_socket *xsk = &xdp->sockets[(xdp->next + i) % xdp->socket_count];
    n += drain(xdp, xsk, frames + n, max - n);
    if (xdp_needs_wakeup(&xsk->fill)) {
      recv(xsk->fd, NULL, 0, MSG_DONTWAIT);
    }
  }
  xdp->next = (xdp->next + 1) % xdp->socket_count;
  return n;
}
