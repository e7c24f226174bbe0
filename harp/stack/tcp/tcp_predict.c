/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Van Jacobson's header prediction, extended to the Ethernet and IPv4 headers. It takes the next
 * payload or a pure ACK of an established connection with timestamps, and passes the payload to
 * the owner. It compares the headers with their usual values, a word at a time. It changes no
 * state until all comparisons have succeeded. Any other frame takes the general path (ip_input.c,
 * tcp_input.c), which checks it from the start.
 */
#include "harp/stack/tcp/tcp_predict.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_rcvq.h"

enum { USUAL_TCP = TCP_HEADER + TCP_TIMESTAMP_OPTION, USUAL_HEADERS = IP_HEADER + USUAL_TCP };

/* The value of the four bytes that next_of compares in one word. */
enum { USUAL_CONNECTION = TCP_ESTABLISHED | 1 << 8 };
_Static_assert(offsetof(struct harp_tcp, timestamps) == offsetof(struct harp_tcp, state) + 1 &&
                   offsetof(struct harp_tcp, fin_waiting) == offsetof(struct harp_tcp, state) + 2 &&
                   offsetof(struct harp_tcp, detached) == offsetof(struct harp_tcp, state) + 3,
               "open, with timestamps, no FIN ahead, owned");

/* The header fields of a segment, in host order. */
struct numbers {
  uint32_t seq, ack, length, window, timestamp;
};

static uint64_t load_64(const uint8_t *p)
{
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Whether the frame is IPv4 to our hardware address. */
static bool usual_link(const struct harp_stack *stack, const uint8_t *eth)
{
  uint16_t type;
  memcpy(&type, eth + ETH_TYPE, sizeof type);
  /* Compare six bytes of eight. */
  uint64_t other = (load_64(eth) ^ load_64(stack->config.mac)) << 16;
  return !(other | (type ^ (uint16_t)__builtin_bswap16(ETH_TYPE_IPV4)));
}

/* The header checksum (RFC 1071): a correct sum folds to 0xffff, which is zero in one's complement.
 */
static bool ip_sum_right(const uint8_t *ip)
{
  uint64_t first = load_64(ip), sum = first + load_64(ip + 8);
  sum = (sum >> 32) + (sum & 0xffffffff) + (sum < first) + load_address(ip + 16);
  return sum % 0xffff == 0;
}

/* Whether the packet is to our address, has no IP options, is no fragment and has a correct header
 * checksum. */
static bool usual_ip(const struct harp_stack *stack, const uint8_t *ip)
{
  /* One word: more-fragments flag and fragment offset, TTL (masked out), protocol. */
  const uint32_t mask = 0xff00ff3f, tcp = (uint32_t)IP_PROTOCOL_TCP << 24;
  uint32_t other = (load_address(ip + IP_FRAGMENT) & mask) ^ tcp;
  other |= ip[0] ^ 0x45;
  other |= load_address(ip + IP_DST) ^ stack->config.address;
  return (other | !ip_sum_right(ip)) == 0;
}

/* Whether the only option is timestamps and the flags are ACK, with or without PSH. */
static bool usual_tcp(const uint8_t *tcp)
{
  uint32_t other = load_address(tcp + TCP_OFFSET) & (0xffff ^ FLAG_PSH << 8);
  other ^= USUAL_TCP / 4 << 4 | FLAG_ACK << 8;
  return !(other | (load_address(tcp + TCP_HEADER) ^ __builtin_bswap32(OPTION_TIMESTAMP_LAYOUT)));
}

/* Returns the owner's memory for the payload of the next segment, or NULL. The checksum is computed
 * during the copy to that memory. A damaged segment does not advance RCV.NXT, so a later segment
 * overwrites its bytes. That is safe even if the ports or the sequence number are damaged: only
 * memory for bytes not yet received is written. */
static uint8_t *rx_buffer_for(struct harp_tcp *tcp, uint32_t length)
{
  bool taken = length && !tcp->rcv.queue && tcp->ops->rx_buffer && tcp->ops->deliver;
  return taken ? tcp->ops->rx_buffer(tcp->user, tcp, length) : NULL;
}

/* Not inline: few ports leave the checksum to the stack, and the usual path keeps its registers. */
__attribute__((noinline)) static bool sum_right(const uint8_t *ip, uint8_t *rx_buffer,
                                                const uint8_t *payload, uint32_t length)
{
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, load_address(ip + IP_SRC), load_address(ip + IP_DST), IP_PROTOCOL_TCP,
                      USUAL_TCP + length);
  harp_sum_add(&sum, ip + IP_HEADER, USUAL_TCP);
  harp_sum_copy(&sum, rx_buffer, payload, length);
  return harp_sum_fold(&sum) == 0xffff;
}

/* Verifies the checksum (RFC 9293, 3.1) of a segment that the port has not verified. Returns where
 * its payload now lies, in the frame or in the owner's memory; NULL: the checksum is wrong. */
static const uint8_t *summed_payload(struct harp_tcp *tcp, const struct harp_rx_frame *frame,
                                     const uint8_t *payload, uint32_t length)
{
  const uint8_t *ip = frame->header + tcp->stack->link_header;
  uint8_t *rx_buffer = frame->payload_length ? NULL : rx_buffer_for(tcp, length);
  if (!sum_right(ip, rx_buffer, payload, length)) {
    return NULL;
  }
  COUNT_N(tcp->stack, rx_software_checksums, rx_buffer != NULL);
  return rx_buffer ? rx_buffer : payload;
}

/* Whether this is the next segment of the connection and no special case applies. It evaluates all
 * conditions without branches, because they are rarely true. */
static bool next_of(const struct harp_tcp *tcp, const struct numbers *in)
{
  uint32_t newly_acked = in->ack - tcp->snd.una;
  uint32_t other = load_address(&tcp->state) ^ USUAL_CONNECTION;
  other |= in->seq ^ tcp->rcv.nxt;                      /* hole or duplicate */
  other |= in->length > tcp->rcv.right - tcp->rcv.nxt;  /* beyond the window */
  other |= newly_acked > tcp->snd.nxt - tcp->snd.una;   /* old or never sent */
  other |= (in->length | newly_acked) == 0;             /* duplicate ACK or window update */
  other |= (in->timestamp - tcp->ts.recent) & 1u << 31; /* PAWS */
  other |= tcp->rcv.ooo != NULL;                        /* reassembly */
  return !other;
}

/* The fields of a segment with the usual headers (RFC 9293, 3.1; RFC 7323, 3.2). wire: the TCP
 * header. */
static struct numbers numbers_of(const uint8_t *ip, const uint8_t *wire)
{
  return (struct numbers){
      .seq = load_be32(wire + TCP_SEQUENCE),
      .ack = load_be32(wire + TCP_ACKNOWLEDGEMENT),
      .length = load_be16(ip + IP_TOTAL_LENGTH) - USUAL_HEADERS, /* wraps if too short */
      .window = load_be16(wire + TCP_WINDOW_FIELD),
      .timestamp = load_be32(wire + TCP_HEADER + 4),
  };
}

/* Finds the payload behind the headers, or where the port has put it. Returns NULL if it is in two
 * pieces; the general path handles those. headers: bytes, link header included. *present: bytes of
 * the frame at the payload. */
static const uint8_t *payload_of(const struct harp_rx_frame *frame, uint32_t headers,
                                 uint32_t *present)
{
  uint32_t behind = frame->header_length - headers;
  if (frame->payload_length) {
    *present = frame->payload_length;
    return behind ? NULL : frame->payload;
  }
  *present = behind;
  return frame->header + headers;
}

/* Finds the connection of a segment. The previous segment is likely to be of the same one. */
static struct harp_tcp *connection_of(const struct harp_stack *stack, uint64_t key)
{
  struct harp_tcp *last = stack->current;
  return last && last->key == key ? last : tcp_find(stack, key);
}

/* TS.Recent (RFC 7323, 4.3 (2)): from a segment with SEG.SEQ <= Last.ACK.sent. next_of has compared
 * the timestamp. */
static void take_timestamp(struct harp_tcp *tcp, const struct numbers *in, uint64_t now)
{
  if (in->timestamp != tcp->ts.recent && seq_le(in->seq, tcp->ack.last_sent)) {
    tcp->ts.recent = in->timestamp;
    tcp->ts.recent_time = now;
  }
}

/* Takes an acknowledgement of data or a new window. wire: the TCP header. Not inline: most
 * segments with payload bring neither. */
__attribute__((noinline)) static void take_new_ack(struct harp_tcp *tcp, uint32_t seq, uint32_t ack,
                                                   const uint8_t *wire, bool bare)
{
  const struct tcp_ack_numbers numbers = {
      .seq = seq,
      .ack = ack,
      .window = load_be16(wire + TCP_WINDOW_FIELD),
      .echo = load_be32(wire + TCP_HEADER + 8),
      .has_echo = true,
      .bare = bare,
  };
  tcp_ack(tcp, &numbers, NULL);
}

/* wire: the TCP header. Returns whether the connection is still open. */
static bool take_ack(struct harp_tcp *tcp, const struct numbers *in, const uint8_t *wire)
{
  uint32_t window = in->window << tcp->snd.wscale;
  if (in->ack == tcp->snd.una && window == tcp->snd.wnd && window) {
    tcp->snd.wl1 = in->seq; /* only SND.WL1 and SND.WL2 change (RFC 9293, 3.10.7.4) */
    tcp->snd.wl2 = in->ack;
    return true;
  }
  take_new_ack(tcp, in->seq, in->ack, wire, in->length == 0);
  return tcp->state != TCP_CLOSE;
}

/* Schedules the acknowledgement. Only the first segment of a burst needs tcp_ack_on_payload,
 * because its size stands for the others. */
static void acknowledge(struct harp_tcp *tcp, uint32_t length, const struct harp_rx_frame *frame)
{
  if (!tcp_ack_extend(tcp)) {
    const uint8_t *wire = frame->header + tcp->stack->link_header + IP_HEADER;
    tcp_ack_on_payload(tcp, length, frame->segment_size, wire[TCP_FLAG_BYTE] & FLAG_PSH, false);
    tcp_send_ack_within_burst(tcp);
  }
}

static void take_payload(struct harp_tcp *tcp, const uint8_t *payload, uint32_t length,
                         const struct harp_rx_frame *frame)
{
  uint32_t taken = 0;
  if (!tcp->rcv.queue && tcp->ops->deliver) {
    taken = (uint32_t)tcp->ops->deliver(tcp->user, tcp, payload, length);
    if (tcp->state == TCP_CLOSE) {
      return;
    }
  }
  if (taken == length) {
    tcp->rcv.mem_pressure = false;
    tcp->rcv.nxt += length;
    tcp->bytes_in += length;
    COUNT_N(tcp->stack, tcp_payload_in, length);
    acknowledge(tcp, length, frame);
    return;
  }
  uint32_t queued = tcp->rcv.queued;
  tcp_rcvq_accept(tcp, payload, length, taken);
  acknowledge(tcp, length, frame);
  if (tcp->rcv.queued != queued && tcp->ops->readable) {
    tcp->ops->readable(tcp->user, tcp);
  }
}

bool tcp_predicted(struct harp_stack *stack, const struct harp_rx_frame *frame)
{
  uint32_t headers = stack->link_header + USUAL_HEADERS;
  if (frame->header_length < headers || (stack->link_header && !usual_link(stack, frame->header))) {
    return false;
  }
  const uint8_t *ip = frame->header + stack->link_header;
  const uint8_t *wire = ip + IP_HEADER;
  if (!usual_ip(stack, ip) || !usual_tcp(wire)) {
    return false;
  }
  struct harp_tcp *tcp = connection_of(stack, tcp_key(load_address(ip + IP_SRC), load_be32(wire)));
  struct numbers in = numbers_of(ip, wire);
  uint32_t present;
  const uint8_t *payload = payload_of(frame, headers, &present);
  if (!tcp || in.length > present || !payload || !next_of(tcp, &in)) {
    return false;
  }
  if (!frame->checksum_good) {
    payload = summed_payload(tcp, frame, payload, in.length);
    if (!payload) {
      return false;
    }
  }
  COUNT(stack, tcp_segments_in);
  COUNT(stack, tcp_fast_path);
  stack->current = tcp;
  tcp->last_receive = stack->now;
  tcp->probes = 0;
  take_timestamp(tcp, &in, stack->now);
  if (take_ack(tcp, &in, wire) && in.length) {
    take_payload(tcp, payload, in.length, frame);
  }
  return true;
}
