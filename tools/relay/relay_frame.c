/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a frame with offload requests into frames of a wire, like a NIC with TSO and checksum
 * offload, in software.
 */
#include "tools/relay/relay.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

/* Sum of 16-bit words in memory order, RFC 1071. sum continues an earlier range of even length. */
static uint64_t sum_words(const uint8_t *data, size_t length, uint64_t sum)
{
  size_t i = 0;

  for (; i + 4 <= length; i += 4) {
    uint32_t word;

    memcpy(&word, data + i, 4);
    sum += word;
  }
  for (; i < length; i += 2) {
    uint16_t word = 0;

    memcpy(&word, data + i, length - i >= 2 ? 2 : 1);
    sum += word;
  }
  return sum;
}

static uint16_t fold(uint64_t sum)
{
  while (sum >> 16) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return (uint16_t)~sum;
}

static void store_ip_checksum(struct iphdr *ip)
{
  ip->check = 0;
  ip->check = fold(sum_words((const uint8_t *)ip, ip->ihl * 4u, 0));
}

static void store_tcp_checksum(const struct iphdr *ip, struct tcphdr *tcp, size_t length)
{
  uint64_t pseudo = (uint64_t)htons(IPPROTO_TCP) + htons((uint16_t)length);

  pseudo = sum_words((const uint8_t *)&ip->saddr, 8, pseudo);
  tcp->check = 0;
  tcp->check = fold(sum_words((const uint8_t *)tcp, length, pseudo));
}

bool relay_frame_is_tcp(const uint8_t *frame, size_t length)
{
  const struct ether_header *ethernet = (const struct ether_header *)frame;
  const struct iphdr *ip = (const struct iphdr *)(frame + ETHER_HDR_LEN);

  return length >= ETHER_HDR_LEN + sizeof *ip && ethernet->ether_type == htons(ETHERTYPE_IP) &&
         ip->protocol == IPPROTO_TCP;
}

size_t relay_frame_tcp_headers(const uint8_t *frame, size_t length)
{
  const struct iphdr *ip = (const struct iphdr *)(frame + ETHER_HDR_LEN);

  if (!relay_frame_is_tcp(frame, length) || ip->ihl < 5) {
    return 0;
  }
  size_t before = ETHER_HDR_LEN + ip->ihl * 4u;
  if (length < before + sizeof(struct tcphdr)) {
    return 0;
  }
  const struct tcphdr *tcp = (const struct tcphdr *)(frame + before);
  size_t headers = before + tcp->doff * 4u;

  return tcp->doff >= 5 && length >= headers ? headers : 0;
}

/* Changes a copy of a large segment's headers into those of one piece. */
static void piece_headers(uint8_t *frame, size_t length, unsigned number, uint32_t offset,
                          bool last)
{
  struct iphdr *ip = (struct iphdr *)(frame + ETHER_HDR_LEN);
  struct tcphdr *tcp = (struct tcphdr *)((uint8_t *)ip + ip->ihl * 4);

  ip->tot_len = htons((uint16_t)(length - ETHER_HDR_LEN));
  ip->id = htons((uint16_t)(ntohs(ip->id) + number));
  store_ip_checksum(ip);
  tcp->seq = htonl(ntohl(tcp->seq) + offset);
  if (!last) {
    tcp->fin = 0;
    tcp->psh = 0;
  }
  if (number) { /* RFC 3168, 6.1.2: CWR only in the first segment */
    tcp->th_flags &= 0x7f;
  }
  store_tcp_checksum(ip, tcp, length - (size_t)((uint8_t *)tcp - frame));
}

static void cut(struct relay_path *path, const uint8_t *frame, size_t length, size_t headers,
                size_t segment, uint64_t now_ns)
{
  size_t payload = length - headers;

  for (size_t offset = 0, number = 0; offset < payload; offset += segment, number++) {
    size_t piece = payload - offset < segment ? payload - offset : segment;
    uint8_t *room = relay_path_room(path);

    if (!room) {
      continue;
    }
    memcpy(room, frame, headers);
    memcpy(room + headers, frame + headers + offset, piece);
    piece_headers(room, headers + piece, (unsigned)number, (uint32_t)offset,
                  offset + piece == payload);
    relay_path_add(path, headers + piece, now_ns);
  }
}

/* The checksum field already holds the sum of the pseudo-header. */
static bool fill_checksum(const struct virtio_net_hdr *vnet, uint8_t *frame, size_t length)
{
  size_t start = vnet->csum_start;
  size_t field = start + vnet->csum_offset;

  if (field + 2 > length) {
    return false;
  }
  uint16_t sum = fold(sum_words(frame + start, length - start, 0));
  memcpy(frame + field, &sum, 2);
  return true;
}

void relay_frame_complete(struct relay_path *path, const struct virtio_net_hdr *vnet,
                          uint8_t *frame, size_t length, uint64_t now_ns)
{
  unsigned kind = vnet->gso_type & ~VIRTIO_NET_HDR_GSO_ECN & 0xffu;

  path->counts.frames_in++;
  if (kind == VIRTIO_NET_HDR_GSO_TCPV4) {
    size_t headers = relay_frame_tcp_headers(frame, length);

    if (headers && vnet->gso_size && headers + vnet->gso_size <= path->frame_size) {
      cut(path, frame, length, headers, vnet->gso_size, now_ns);
    } else {
      path->counts.unusable++;
    }
    return;
  }
  bool needs_sum = vnet->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
  if (kind != VIRTIO_NET_HDR_GSO_NONE || length < ETHER_HDR_LEN || length > path->frame_size ||
      (needs_sum && !fill_checksum(vnet, frame, length))) {
    path->counts.unusable++;
    return;
  }
  uint8_t *room = relay_path_room(path);
  if (room) {
    memcpy(room, frame, length);
    relay_path_add(path, length, now_ns);
  }
}
