/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/attacker.h"

#include <net/ethernet.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/ip/checksum.h"

static size_t ethernet(const uint8_t *from, const uint8_t *to, uint16_t type, uint8_t *out)
{
  struct ether_header header = {.ether_type = htons(type)};
  memcpy(header.ether_dhost, to, 6);
  memcpy(header.ether_shost, from, 6);
  memcpy(out, &header, sizeof header);
  return sizeof header;
}

static size_t ipv4(uint32_t source, uint32_t target, uint8_t protocol, size_t payload, uint8_t *out)
{
  struct iphdr ip = {.version = 4,
                     .ihl = 5,
                     .tot_len = htons((uint16_t)(sizeof ip + payload)),
                     .frag_off = htons(IP_DF),
                     .ttl = 64,
                     .protocol = protocol,
                     .saddr = source,
                     .daddr = target};
  ip.check = harp_checksum(&ip, sizeof ip);
  memcpy(out, &ip, sizeof ip);
  return sizeof ip;
}

size_t frame_tcp(const struct flood *flood, const struct segment *segment, uint8_t *out)
{
  size_t length = sizeof(struct tcphdr) + segment->option_bytes + segment->payload_bytes;
  struct tcphdr tcp = {.th_sport = htons(segment->source_port),
                       .th_dport = htons(segment->port),
                       .th_seq = htonl(segment->seq),
                       .th_ack = htonl(segment->ack),
                       .th_off = (uint8_t)((sizeof tcp + segment->option_bytes) / 4) & 0xf,
                       .th_flags = segment->flags,
                       .th_win = htons(segment->closed ? 0 : 65535)};
  size_t at = ethernet(flood->mac, flood->to_mac, ETHERTYPE_IP, out);
  at += ipv4(segment->source, flood->to, IPPROTO_TCP, length, out + at);
  memcpy(out + at, &tcp, sizeof tcp);
  if (segment->option_bytes) {
    memcpy(out + at + sizeof tcp, segment->options, segment->option_bytes);
  }
  if (segment->payload_bytes) {
    memcpy(out + at + sizeof tcp + segment->option_bytes, segment->payload, segment->payload_bytes);
  }
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, segment->source, flood->to, IPPROTO_TCP, (uint32_t)length);
  harp_sum_add(&sum, out + at, length);
  tcp.th_sum = (uint16_t)~harp_sum_fold(&sum);
  memcpy(out + at, &tcp, sizeof tcp);
  return at + length;
}

size_t frame_fragment(const struct flood *flood, const struct segment *segment, uint16_t id,
                      uint16_t offset, uint8_t *out)
{
  size_t length = frame_tcp(flood, segment, out), head = ETHER_HDR_LEN + sizeof(struct iphdr);
  size_t piece = (length - head - offset) & ~7u;
  struct iphdr ip;
  if (offset == 0) {
    piece = 64;
  }
  memcpy(&ip, out + ETHER_HDR_LEN, sizeof ip);
  memmove(out + head, out + head + offset, piece);
  ip.id = htons(id);
  ip.frag_off = htons((uint16_t)(IP_MF | offset / 8));
  ip.tot_len = htons((uint16_t)(sizeof ip + piece));
  ip.check = 0;
  ip.check = harp_checksum(&ip, sizeof ip);
  memcpy(out + ETHER_HDR_LEN, &ip, sizeof ip);
  return head + piece;
}

size_t frame_too_big(const struct flood *flood, uint32_t source, uint32_t seq, uint16_t mtu,
                     uint8_t *out)
{
  struct icmphdr icmp = {.type = ICMP_DEST_UNREACH, .code = ICMP_FRAG_NEEDED};
  struct tcphdr tcp = {
      .source = htons(flood->own_port), .dest = htons(flood->peer_port), .seq = htonl(seq)};
  size_t about = sizeof(struct iphdr) + 8; /* RFC 792: the IP header and the next 8 bytes */
  size_t at = ethernet(flood->mac, flood->to_mac, ETHERTYPE_IP, out);
  at += ipv4(source, flood->to, IPPROTO_ICMP, sizeof icmp + about, out + at);
  uint8_t *message = out + at;
  icmp.un.frag.mtu = htons(mtu);
  memcpy(message, &icmp, sizeof icmp);
  at = sizeof icmp;
  at += ipv4(flood->to, flood->peer, IPPROTO_TCP, 1400, message + at);
  memcpy(message + at, &tcp, 8);
  icmp.checksum = harp_checksum(message, sizeof icmp + about);
  memcpy(message, &icmp, sizeof icmp);
  return (size_t)(message - out) + sizeof icmp + about;
}

size_t frame_arp(const uint8_t *from_mac, const uint8_t *to_mac, uint16_t operation,
                 uint32_t sender, uint32_t target, uint8_t *out)
{
  struct arphdr head = {.ar_hrd = htons(ARPHRD_ETHER),
                        .ar_pro = htons(ETHERTYPE_IP),
                        .ar_hln = 6,
                        .ar_pln = 4,
                        .ar_op = htons(operation)};
  uint8_t *at = out + ethernet(from_mac, to_mac, ETHERTYPE_ARP, out);
  memcpy(at, &head, sizeof head);
  memcpy(at + ARP_SENDER_MAC, from_mac, 6);
  memcpy(at + ARP_SENDER_IP, &sender, 4);
  memcpy(at + ARP_TARGET_MAC, to_mac, 6);
  memcpy(at + ARP_TARGET_IP, &target, 4);
  return (size_t)(at + ARP_LENGTH - out);
}

/* --- Received frames --- */

static void arp_seen(struct flood *flood, const uint8_t *arp)
{
  uint8_t answer[FLOOD_FRAME];
  uint32_t sender;
  if (memcmp(arp + ARP_TARGET_IP, &flood->from, 4) != 0 ||
      arp[ARP_OPERATION + 1] != ARPOP_REQUEST) {
    return;
  }
  memcpy(&sender, arp + ARP_SENDER_IP, 4);
  size_t length = frame_arp(flood->mac, arp + ARP_SENDER_MAC, ARPOP_REPLY, flood->from, sender,
                            answer);
  flood->count.arp += tx_send(flood, &(struct iovec){answer, length}, 1) == 1;
}

static void tcp_seen(struct flood *flood, const struct tcphdr *tcp)
{
  uint32_t index = flood->by_port[ntohs(tcp->dest)];
  struct visitor *visitor = index ? &flood->visitors[index - 1] : NULL;
  flood->count.resets += tcp->rst;
  if (!visitor || visitor->port != ntohs(tcp->dest) || visitor->answered || !tcp->syn ||
      !tcp->ack || ntohl(tcp->ack_seq) != visitor->seq) {
    return;
  }
  visitor->answered = true;
  visitor->ack = ntohl(tcp->seq) + 1;
  flood->count.answered++;
  if (visitor->step == 1 && flood->answered_count < FLOOD_VISITORS) {
    flood->answered[flood->answered_count++] = index - 1;
  }
}

void frame_seen(struct flood *flood, const uint8_t *frame, size_t length)
{
  struct ether_header header;
  struct iphdr ip;
  struct tcphdr tcp;
  if (length < sizeof header + ARP_LENGTH) {
    return;
  }
  memcpy(&header, frame, sizeof header);
  if (header.ether_type == htons(ETHERTYPE_ARP)) {
    arp_seen(flood, frame + sizeof header);
    return;
  }
  memcpy(&ip, frame + sizeof header, sizeof ip);
  size_t at = sizeof header + ip.ihl * 4u;
  if (header.ether_type != htons(ETHERTYPE_IP) || ip.protocol != IPPROTO_TCP ||
      ip.daddr != flood->from || length < at + sizeof tcp) {
    return;
  }
  memcpy(&tcp, frame + at, sizeof tcp);
  if (ip.saddr == flood->to && ntohs(tcp.source) == flood->port) {
    tcp_seen(flood, &tcp);
  }
}
