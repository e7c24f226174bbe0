/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: one recvmmsg per burst. packet_place.c says where the bytes of each frame go.
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
#include "dpdk_glue/packet/packet_place.h"

enum { LEAST_BURST = 2 };

int harp_packet_rx_init(struct packet_queue *queue)
{
  queue->slots = mmap(NULL, (size_t)PACKET_BURST * PACKET_SLOT, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (queue->slots == MAP_FAILED) {
    queue->slots = NULL;
    return -ENOMEM;
  }
  queue->burst = LEAST_BURST;
  for (unsigned i = 0; i < PACKET_BURST; i++) {
    queue->rx[i].msg_hdr.msg_iov = queue->rx_iov[i];
  }
  return 0;
}

void harp_packet_rx_free(struct packet_queue *queue)
{
  if (queue->slots) {
    munmap(queue->slots, (size_t)PACKET_BURST * PACKET_SLOT);
  }
  queue->slots = NULL;
}

static bool arp_is_due(struct packet_queue *queue)
{
  if (queue->arp_fd < 0) {
    return false;
  }
  unsigned left = atomic_load_explicit(&queue->arp_in, memory_order_relaxed);
  atomic_store_explicit(&queue->arp_in, left > 0 ? left - 1 : PACKET_ARP_PERIOD,
                        memory_order_relaxed);
  return left == 0;
}

/* The socket reports ENETDOWN only once, so HARP must ask whether the interface is up again. The
 * interface may also be gone, and then the port is dead. */
static int check_link(struct packet_port *packet, struct packet_queue *queue)
{
  int bound = queue->arp_fd >= 0 ? queue->arp_fd : queue->fd;
  const struct packet_sockets *sockets = &packet->sockets;
  int rc = harp_netdev_check_link(sockets->control, bound, &sockets->device, &packet->port.info);
  bool changed = rc < 0 &&
                 harp_netdev_lost_address(sockets->control, &sockets->device, &packet->port.info);
  atomic_store_explicit(&packet->lost_address, changed, memory_order_relaxed);
  queue->down = rc == -ENETDOWN || rc == -ENODEV;
  return rc;
}

static int receive_failed(struct packet_port *packet, struct packet_queue *queue, int error)
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
static int receive_arp(struct packet_port *packet, struct packet_queue *queue,
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
  if (n < 0) {
    return n;
  }
  unsigned room = (unsigned)(max - n);
  struct harp_rx_hint one_place;
  if (room >= PACKET_PIECES) {
    room -= PACKET_PIECES - 1; /* the last frame may be reported in pieces */
  } else if (hint) {
    one_place = *hint;
    one_place.next = NULL;
    hint = &one_place;
  }
  unsigned count = room < queue->burst ? room : queue->burst;
  if (count == 0) {
    return n;
  }
  if (queue->down || atomic_load_explicit(&packet->lost_address, memory_order_relaxed)) {
    int rc = check_link(packet, queue);
    if (rc < 0) {
      return rc;
    }
  }
  count = harp_packet_prepare(queue, hint, count);
  int got = harp_recvmmsg(queue->fd, queue->rx, count, MSG_DONTWAIT);
  if (got < 0) {
    int rc = receive_failed(packet, queue, errno);
    return n ? n : rc;
  }
  adapt_burst(queue, (unsigned)got);
  bool displaced = false;
  for (unsigned i = 0; i < (unsigned)got; i++) {
    if (queue->rx[i].msg_hdr.msg_flags & MSG_TRUNC) {
      queue->rx_lost++; /* longer than any IPv4 packet */
      continue;
    }
    if (packet->sockets.other_count >
        0) { /* a frame for our address may have another interface's MAC */
      memcpy(harp_packet_front(queue, i) - queue->slot[i].header + ETH_DST, port->info.mac, 6);
    }
    n += harp_packet_report(queue, i, &displaced, &frames[n]);
  }
  return n;
}
