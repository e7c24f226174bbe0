/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel receives the gather list without a copy in user space. A virtio-net header in
 * front requests the offloads, which the device or the kernel performs.
 *
 * Small frames (acknowledgements, short messages) are copied and wait for the end of the burst, so
 * that one call sends many. A large frame first sends the held ones, which keeps the order.
 */
#include "dpdk_glue/kernel/packet_tx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <string.h>
#include <time.h>

#include "dpdk_glue/kernel/packet_calls.h"
#include "harp/counters.h"
#include "harp/headers.h"

enum {
  SEND_BUFFER = 4 * 1024 * 1024, /* bytes */
  PAGE = 4096,                   /* bytes; the distance of 4K aliasing */
  SLOW_DISTANCE = 64,            /* bytes */
  LONG_PIECE = 1024,             /* bytes; the copy of a shorter one takes little time anyway */
  SHIFTS = 8,
  REFUSED_MS = 20,    /* longer than a full queue takes to send one frame */
  OVERTAKEN_MOST = 3, /* times that other frames overtake one that is refused */
  HEADROOM = 16,      /* bytes before the frame: LL_RESERVED_SPACE of most devices */
  /* The kernel always finds a buffer of 4 pages. One of 8 has no advantage over single pages. A
   * frame of less than 12 would waste too much of a buffer of 16. The kernel needs 512 bytes. */
  EASY = 4 * PAGE - 512,  /* bytes */
  LONG = 12 * PAGE - 512, /* bytes */
  PAGED_FRAMES = 16383,   /* most frames sent in pages between two tries: up to 1 GiB */
};

static struct sockaddr_ll address_of(int ifindex, uint16_t protocol)
{
  return (struct sockaddr_ll){
      .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = ifindex};
}

uint32_t harp_packet_tx_longest(const struct harp_netdev *device)
{
  return device->gso_max > PACKET_TX_FRAME_MAX ? (uint32_t)PACKET_TX_FRAME_MAX
                                               : device->gso_max - 1;
}

/* The kernel doubles the requested size. Without CAP_NET_ADMIN the limits are net.core.wmem_max and
 * net.core.rmem_max. */
void harp_packet_set_buffers(int fd)
{
  int send = SEND_BUFFER / 2, receive = PACKET_RECEIVE_BUFFER / 2;
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof(send)) < 0) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof(send));
  }
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof(receive)) < 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof(receive));
  }
}

void harp_packet_tx_init(struct packet_tx *tx, const struct harp_netdev *device, int fd)
{
  tx->fd = fd;
  tx->tso = device->tso;
  tx->longest = harp_packet_tx_longest(device);
  tx->to_ipv4 = address_of(device->index, ETH_P_IP);
  tx->to_arp = address_of(device->index, ETH_P_ARP);
  for (unsigned i = 0; i < PACKET_TX_HELD; i++) {
    tx->held_iov[i].iov_base = &tx->held[i];
    tx->message[i].msg_hdr.msg_iov = &tx->held_iov[i];
    tx->message[i].msg_hdr.msg_iovlen = 1;
    tx->message[i].msg_hdr.msg_namelen = sizeof(struct sockaddr_ll);
  }
}

/* Every frame carries its protocol, because kernels before 5.1 do not read it from the frame and
 * cannot segment a frame of unknown protocol. */
static struct sockaddr_ll *address_for(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  const uint8_t *type = (const uint8_t *)frame->iov[0].iov_base + 2 * ETH_ALEN;
  return type[0] == ETH_P_ARP >> 8 && type[1] == (ETH_P_ARP & 0xff) ? &tx->to_arp : &tx->to_ipv4;
}

/* Whether a copy is slow in one direction if its ends are so far apart, modulo PAGE. */
static bool is_slow(unsigned distance)
{
  return distance % PAGE > 0 &&
         (distance % PAGE < SLOW_DISTANCE || distance % PAGE > PAGE - SLOW_DISTANCE);
}

/* Finds a long piece whose copy is slow. start: where the frame would begin, modulo PAGE. distance:
 * between the piece's destination and source. */
static bool find_slow(const struct harp_tx_frame *frame, unsigned start, unsigned *distance)
{
  unsigned at = start;
  for (unsigned i = 0; i < frame->iov_count; i++) {
    const struct iovec *piece = &frame->iov[i];
    *distance = (at - (unsigned)(uintptr_t)piece->iov_base) % PAGE;
    if (piece->iov_len >= LONG_PIECE && is_slow(*distance)) {
      return true;
    }
    at += (unsigned)piece->iov_len;
  }
  return false;
}

/*
 * Returns the bytes of the frame in the linear part of the kernel's buffer (vnet header: hdr_len).
 * linear: all of them if possible. The other bytes begin at the start of a page, and the kernel
 * allocates and copies their pages one by one, so a linear frame is faster. A buffer of more than
 * eight pages has a second advantage: the kernel keeps no stock of them for each CPU. The sender
 * then writes to the buffer that a receiver on this host has just freed, which is in a cache.
 *
 * The kernel copies with `rep movsb`, which is ten times slower on AMD's processors if the
 * destination is 1 to 63 bytes behind the source, modulo 4096. The receiver usually copies back to
 * the page offset of our source. Its copy is slow if our destination is 1 to 63 bytes before our
 * source, so this distance is as bad. A chunk header before page-aligned payload gives just such a
 * distance if the payload begins on a page. A few more bytes in the linear part prevent it. A frame
 * has the payload of two messages at most times, so a few tries suffice.
 */
static uint16_t linear_length(const struct harp_tx_frame *frame, bool linear)
{
  unsigned distance;
  if (frame->length < PAGE) {
    return frame->header_length; /* the kernel makes all of it linear */
  }
  if (linear && !find_slow(frame, HEADROOM, &distance)) {
    return (uint16_t)frame->length;
  }
  uint16_t length = frame->header_length;
  for (int i = 0; i < SHIFTS && find_slow(frame, -(unsigned)length, &distance); i++) {
    length += distance < SLOW_DISTANCE ? distance : distance - (PAGE - SLOW_DISTANCE);
  }
  return length;
}

static bool has_segments(const struct harp_tx_frame *frame)
{
  return frame->segment_size && frame->length - frame->header_length > frame->segment_size;
}

static void fill_vnet(struct virtio_net_hdr *vnet, const struct harp_tx_frame *frame, bool linear)
{
  memset(vnet, 0, sizeof(*vnet));
  if (frame->checksum_needed) {
    vnet->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    vnet->csum_start = frame->checksum_start;
    vnet->csum_offset = frame->checksum_offset;
  }
  if (has_segments(frame)) {
    vnet->gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
    vnet->gso_size = frame->segment_size;
  }
  if (vnet->gso_type || frame->length >= PAGE) {
    vnet->hdr_len = linear_length(frame, linear);
  }
}

static uint64_t coarse_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Whether frames have been refused since *since, ms, for so long that no full queue explains it.
 * *since 0: this is the first one. */
static bool lasts(uint64_t *since)
{
  uint64_t now = coarse_ms();
  *since = *since ? *since : now;
  return now - *since >= REFUSED_MS;
}

/* Maps the errno of a failed send to the port's error and counts it. */
static int send_failed(struct packet_tx *tx, int error)
{
  switch (error) {
  case EAGAIN:
  case EINTR: tx->full++; return -EAGAIN;
  case EMSGSIZE: tx->errors++; return -EMSGSIZE;
  case ENETDOWN: tx->errors++; return -ENETDOWN;
  case ENXIO:
  case ENODEV: tx->errors++; return -ENODEV;
  default: tx->errors++; return -EIO;
  }
}

/* Removes `count` held frames from index `at` on. Others follow only if the device was full, or has
 * refused frames. */
static void drop_held(struct packet_tx *tx, unsigned at, unsigned count)
{
  tx->held_count -= count;
  for (unsigned i = at; i < tx->held_count; i++) {
    memcpy(&tx->held[i], &tx->held[i + count], sizeof(tx->held[i]));
    tx->held_iov[i].iov_len = tx->held_iov[i + count].iov_len;
    tx->message[i].msg_hdr.msg_name = tx->message[i + count].msg_hdr.msg_name;
  }
}

static void lose_held(struct packet_tx *tx, unsigned count)
{
  tx->errors += count;
  tx->overtaken = 0;
  drop_held(tx, 0, count);
}

/* A frame got through. refused: the held frames before it, which were refused. Returns true if they
 * are lost: a rule drops them, because a full queue does not let others overtake them again and
 * again. */
static bool overtakes(struct packet_tx *tx, unsigned refused)
{
  tx->refused_since = 0;
  tx->overtaken = refused ? tx->overtaken + 1 : 0;
  if (tx->overtaken < OVERTAKEN_MOST) {
    return false;
  }
  lose_held(tx, refused);
  return true;
}

/*
 * Sends the held frames. A frame that the device rejects is lost, as on a wire.
 *
 * The kernel refuses a frame by ENOBUFS if a queue is full, and also if a rule of tc or nftables
 * drops it. The others do not wait for a refused frame. It is lost if others overtake it again and
 * again, or if none gets through for long. 0; -EAGAIN: the socket is full; -ENOBUFS: frames were
 * refused, and wait; or the error of a frame that is lost.
 */
static int send_held(struct packet_tx *tx)
{
  unsigned refused = 0; /* at the head */
  int lost = 0;
  while (refused < tx->held_count) {
    int n = harp_sendmmsg(tx->fd, tx->message + refused, tx->held_count - refused, MSG_DONTWAIT);
    if (n < 0 && errno == ENOBUFS) {
      refused++;
      continue;
    }
    int rc = n < 0 ? send_failed(tx, errno) : 0;
    if (rc == -EAGAIN) {
      return rc;
    }
    drop_held(tx, refused, n < 0 ? 1 : (unsigned)n);
    lost = rc < 0 ? rc : lost;
    if (n > 0 && overtakes(tx, refused)) {
      lost = -EIO;
      refused = 0;
    }
  }
  if (refused && lasts(&tx->refused_since)) {
    lose_held(tx, refused);
    return -EIO;
  }
  tx->full += refused > 0;
  return refused ? -ENOBUFS : lost;
}

static int hold(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  if (tx->held_count == PACKET_TX_HELD) {
    send_held(tx);
  }
  if (tx->held_count == PACKET_TX_HELD) {
    return -EAGAIN;
  }
  struct packet_tx_held *held = &tx->held[tx->held_count];
  fill_vnet(&held->vnet, frame, true);
  uint8_t *to = held->bytes;
  for (unsigned i = 0; i < frame->iov_count; i++) {
    memcpy(to, frame->iov[i].iov_base, frame->iov[i].iov_len);
    to += frame->iov[i].iov_len;
  }
  tx->held_iov[tx->held_count].iov_len = PACKET_VNET + (size_t)frame->length;
  tx->message[tx->held_count].msg_hdr.msg_name = address_for(tx, frame);
  tx->held_count++;
  return 0;
}

/* Returns the result of sendmsg. linear: as linear_length. */
static ssize_t send_frame(struct packet_tx *tx, const struct harp_tx_frame *frame, bool linear)
{
  struct virtio_net_hdr vnet;
  fill_vnet(&vnet, frame, linear);
  tx->iov[0] = (struct iovec){.iov_base = &vnet, .iov_len = PACKET_VNET};
  memcpy(tx->iov + 1, frame->iov, frame->iov_count * sizeof(*frame->iov));
  struct msghdr message = {
      .msg_name = address_for(tx, frame),
      .msg_namelen = sizeof(struct sockaddr_ll),
      .msg_iov = tx->iov,
      .msg_iovlen = 1u + frame->iov_count,
  };
  return harp_sendmsg(tx->fd, &message, MSG_DONTWAIT);
}

static uint32_t destination(const struct harp_tx_frame *frame)
{
  uint32_t to;
  memcpy(&to, (const uint8_t *)frame->iov[0].iov_base + ETH_HEADER + IP_DST, sizeof(to));
  return to;
}

/* A long frame was refused by ENOBUFS. Frames to other hosts get through beside a rule against one
 * host, so the time counts since the last one to this host. */
static int refused_long(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  uint32_t to = destination(frame);
  tx->long_refused_since = to == tx->long_refused_to ? tx->long_refused_since : 0;
  tx->long_refused_to = to;
  if (lasts(&tx->long_refused_since)) {
    tx->errors++;
    return -EIO;
  }
  tx->full++;
  return -EAGAIN;
}

/* A long frame got through. All frames that are still held were refused. */
static void got_through(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  overtakes(tx, tx->held_count);
  if (tx->long_refused_since && destination(frame) == tx->long_refused_to) {
    tx->long_refused_since = 0;
  }
}

/* The kernel's own segmentation copies a linear part, but refers to pages. */
static bool may_be_linear(const struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  bool fits = frame->length <= EASY || (frame->length > LONG && tx->paged == 0);
  return fits && (tx->tso || !has_segments(frame));
}

/*
 * The kernel reports ENOBUFS if it lacks contiguous memory for a linear frame, and also if a
 * queueing discipline is full. The same frame in pages gets through in the first case. In the
 * second case it gets through only if the queue has drained meanwhile. A linear frame then gets
 * through soon, too.
 *
 * The kernel's search for contiguous memory takes long, so the next frames do without it: twice as
 * many after each lack, until a linear frame gets through.
 */
static int send_now(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  if (frame->iov_count > PACKET_TX_IOV) {
    return -EMSGSIZE;
  }
  int held = tx->held_count ? send_held(tx) : 0;
  if (held == -EAGAIN) {
    return -EAGAIN;
  }
  bool linear = may_be_linear(tx, frame), is_long = frame->length > LONG;
  ssize_t sent = send_frame(tx, frame, linear);
  if (is_long && tx->paged > 0) {
    tx->paged--;
  } else if (is_long && linear && sent >= 0) {
    tx->lack = 0;
  } else if (is_long && linear && errno == ENOBUFS) {
    sent = send_frame(tx, frame, false);
    if (sent >= 0) {
      tx->lack = tx->lack < PAGED_FRAMES ? 2 * tx->lack + 1 : PAGED_FRAMES;
      tx->paged = tx->lack;
    }
  }
  if (sent < 0) {
    return errno == ENOBUFS ? refused_long(tx, frame) : send_failed(tx, errno);
  }
  got_through(tx, frame);
  return 0;
}

int harp_packet_tx_send(struct packet_tx *tx, const struct harp_tx_frame *frame)
{
  if (frame->length > tx->longest) {
    return -EMSGSIZE;
  }
  int rc = frame->length <= PACKET_TX_SMALL ? hold(tx, frame) : send_now(tx, frame);
  if (rc == 0) {
    tx->copied += frame->length - frame->header_length;
  }
  return rc;
}

int harp_packet_tx_flush(struct packet_tx *tx)
{
  int rc = tx->held_count ? send_held(tx) : 0;
  return rc == -ENOBUFS ? -EAGAIN : rc;
}

void harp_packet_tx_count(struct packet_tx *tx, uint64_t *counters)
{
  counters[HARP_COUNTER_tx_copied_bytes] += tx->copied;
  counters[HARP_COUNTER_port_tx_full] += tx->full;
  counters[HARP_COUNTER_port_tx_errors] += tx->errors;
  tx->copied = tx->full = tx->errors = 0;
}
