/* SPDX-License-Identifier: Apache-2.0 */
/* IPv4 input: the checks of RFC 1122, 3.2.1, and the demultiplexing by protocol. */
#include "harp/stack/ip/ip_input.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/arp_input.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/icmp.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp_input.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_segment.h"

enum { HEADERS_JOINED = 2048 }; /* bytes: buffer for headers that a port has split */

static bool source_is_host(const struct harp_stack *stack, uint32_t source)
{
  uint8_t first = (uint8_t)source; /* network order: the first byte is the lowest */
  if (first == 0 || first == 127 || first >= 224) {
    return false;
  }
  uint8_t prefix = stack->config.prefix;
  if (prefix == 0 || prefix >= 31) {
    return true;
  }
  uint32_t host_bits = __builtin_bswap32(0xffffffffu >> prefix);
  bool same_net = ((source ^ stack->config.address) & ~host_bits) == 0;
  return !(same_net && (source & host_bits) == host_bits);
}

/* The frame's headers, and the address of the bytes after them, however the port has split the
 * frame. */
struct view {
  const uint8_t *ip;   /* IPv4 header, contiguous with the transport header */
  uint32_t ip_length;  /* total length field, checked against the frame */
  uint32_t contiguous; /* bytes at ip */
  const uint8_t *rest; /* the bytes after those */
};

/* The fields of the TCP header, and where the payload lies (RFC 9293, 3.1). No option is read yet.
 * header: bytes of the TCP header, options included; they lie within the packet. */
static struct harp_segment header_fields(const struct view *view, uint32_t ip_header,
                                         uint32_t header)
{
  const uint8_t *tcp = view->ip + ip_header;
  uint32_t headers = ip_header + header;
  return (struct harp_segment){
      .source = load_address(view->ip + IP_SRC),
      .destination = load_address(view->ip + IP_DST),
      .source_port = load_be16(tcp + TCP_SOURCE),
      .destination_port = load_be16(tcp + TCP_DEST),
      .seq = load_be32(tcp + TCP_SEQUENCE),
      .ack = load_be32(tcp + TCP_ACKNOWLEDGEMENT),
      .window = load_be16(tcp + TCP_WINDOW_FIELD),
      .flags = tcp[TCP_FLAG_BYTE],
      .window_scale = -1,
      .payload = headers < view->contiguous ? view->ip + headers
                                            : view->rest + (headers - view->contiguous),
      .length = view->ip_length - headers,
  };
}

/* The checksum over the pseudo-header, the TCP header and the payload (RFC 9293, 3.1). header: as
 * in header_fields. */
static bool checksum_is_right(const struct view *view, uint32_t ip_header, uint32_t header,
                              const struct harp_segment *segment)
{
  const uint8_t *tcp = view->ip + ip_header;
  uint32_t length = header + segment->length;
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, segment->source, segment->destination, IP_PROTOCOL_TCP, length);
  if (view->ip_length <= view->contiguous) {
    harp_sum_add(&sum, tcp, length);
  } else {
    harp_sum_add(&sum, tcp, header);
    harp_sum_add(&sum, segment->payload, segment->length);
  }
  return harp_sum_fold(&sum) == 0xffff;
}

/* Whether the pair of sockets can identify a connection (RFC 9293, 3.4.1). Port 0 is reserved
 * (RFC 6335, 6). */
static bool socket_pair_is_valid(struct harp_stack *stack, const struct harp_segment *segment)
{
  if (segment->source_port == 0 || segment->destination_port == 0) {
    COUNT(stack, rx_drop_malformed);
    return false;
  }
  if (segment->source == segment->destination &&
      segment->source_port == segment->destination_port) {
    /* A connection to itself would answer its own segments without end. */
    COUNT(stack, rx_drop_source);
    return false;
  }
  return true;
}

static void parse_tcp(struct harp_stack *stack, const struct view *view, uint32_t ip_header,
                      const struct harp_rx_frame *frame)
{
  const uint8_t *tcp = view->ip + ip_header;
  uint32_t length = view->ip_length - ip_header;
  uint32_t header = (uint32_t)(tcp[TCP_OFFSET] >> 4) * 4;
  if (header < TCP_HEADER || header > length) {
    COUNT(stack, rx_drop_malformed);
    return;
  }
  struct harp_segment segment = header_fields(view, ip_header, header);
  segment.segment_size = frame->segment_size;
  if (!frame->checksum_good && !checksum_is_right(view, ip_header, header, &segment)) {
    COUNT(stack, rx_drop_checksum);
    return;
  }
  if (!socket_pair_is_valid(stack, &segment)) {
    return;
  }
  if (!tcp_options_parse(&segment, tcp + TCP_HEADER, header - TCP_HEADER)) {
    COUNT(stack, tcp_bad_options);
  }
  tcp_input(stack, &segment);
}

/* Returns how many header bytes TCP needs in one piece, as far as the first contiguous bytes show
 * it. */
static uint32_t headers_wanted(const uint8_t *ip, uint32_t contiguous)
{
  uint32_t ip_header = (uint32_t)(ip[0] & 15) * 4;
  if (contiguous < ip_header + TCP_HEADER) {
    return ip_header + TCP_HEADER;
  }
  return ip_header + (uint32_t)(ip[ip_header + TCP_OFFSET] >> 4) * 4;
}

/* Copies the frame's first bytes into one piece. */
static uint32_t join(const struct harp_rx_frame *frame, uint8_t *out, uint32_t size)
{
  uint32_t first = HARP_MIN(frame->header_length, size);
  memcpy(out, frame->header, first);
  uint32_t second = HARP_MIN(frame->payload_length, size - first);
  if (second) {
    memcpy(out + first, frame->payload, second);
  }
  return first + second;
}

/* Returns the headers in one piece and the payload in one piece. There are three cases:
 *   - The frame is one piece, or the port has split it behind the TCP headers: it stays as it is.
 *   - The port has split the TCP header: the first bytes are copied to `small`, which has
 *     HEADERS_JOINED bytes.
 *   - The port has split anything else: the frame is copied to the stack's buffer. */
static struct view join_pieces(struct harp_stack *stack, const struct harp_rx_frame *frame,
                               uint8_t *small)
{
  uint32_t link = stack->link_header;
  uint32_t contiguous = frame->header_length;
  const uint8_t *start = frame->header, *rest = frame->payload;
  if (frame->payload_length == 0) {
    return (struct view){.ip = start + link, .contiguous = contiguous - link, .rest = rest};
  }
  bool tcp = contiguous >= link + IP_HEADER && start[link + IP_PROTOCOL] == IP_PROTOCOL_TCP;
  uint32_t wanted = tcp ? link + headers_wanted(start + link, contiguous - link) : 0;
  if (tcp && wanted > contiguous) {
    start = small;
    contiguous = join(frame, small, HEADERS_JOINED);
    if (frame->header_length + frame->payload_length > contiguous) {
      /* The bytes after the joined ones stay where the port has put them. */
      wanted = link + headers_wanted(small + link, contiguous - link);
      contiguous = HARP_MIN(wanted, contiguous);
      rest = frame->payload + (contiguous - frame->header_length);
    }
  } else if (!tcp || wanted < contiguous) {
    /* These are rare: payload in two pieces, and ICMP in two pieces. */
    start = stack->linear;
    contiguous = join(frame, stack->linear, sizeof stack->linear);
  }
  return (struct view){.ip = start + link, .contiguous = contiguous - link, .rest = rest};
}

/* Version, lengths and checksum of the IPv4 header (RFC 1122, 3.2.1.1 and 3.2.1.2). length: bytes
 * of the frame behind the link header. */
static bool header_is_valid(struct harp_stack *stack, struct view *view, uint32_t length)
{
  const uint8_t *ip = view->ip;
  uint32_t header = (uint32_t)(ip[0] & 15) * 4;
  view->ip_length = load_be16(ip + IP_TOTAL_LENGTH);
  if (ip[0] >> 4 != 4 || header < IP_HEADER || header > view->ip_length) {
    COUNT(stack, rx_drop_malformed);
    return false;
  }
  if (view->ip_length > length || header > view->contiguous) {
    COUNT(stack, rx_drop_truncated);
    return false;
  }
  if (harp_checksum(ip, header) != 0) {
    COUNT(stack, rx_drop_checksum);
    return false;
  }
  return true;
}

/* Destination, fragmentation and source (RFC 1122, 3.2.1.3). HARP never reassembles, because its
 * peers set DF. */
static bool is_for_this_host(struct harp_stack *stack, const uint8_t *ip)
{
  if (load_address(ip + IP_DST) != stack->config.address) {
    COUNT(stack, rx_drop_not_ours);
    return false;
  }
  if (load_be16(ip + IP_FRAGMENT) & IP_FRAGMENT_MASK) {
    COUNT(stack, rx_drop_fragment);
    return false;
  }
  if (!source_is_host(stack, load_address(ip + IP_SRC))) {
    COUNT(stack, rx_drop_source);
    return false;
  }
  return true;
}

/* Hands the packet to its protocol; an unknown one is answered (RFC 1122, 3.2.2.1). */
static void demultiplex(struct harp_stack *stack, const struct view *view,
                        const struct harp_rx_frame *frame)
{
  const uint8_t *ip = view->ip;
  uint32_t header = (uint32_t)(ip[0] & 15) * 4;
  uint32_t readable = HARP_MIN(view->ip_length, view->contiguous);
  if (ip[IP_PROTOCOL] == IP_PROTOCOL_TCP) {
    if (readable < header + TCP_HEADER ||
        (frame->payload_length && headers_wanted(ip, view->contiguous) > view->contiguous)) {
      COUNT(stack, rx_drop_truncated);
      return;
    }
    parse_tcp(stack, view, header, frame);
  } else if (ip[IP_PROTOCOL] == IP_PROTOCOL_ICMP) {
    icmp_input(stack, ip, header, readable);
  } else {
    COUNT(stack, rx_drop_not_ours);
    if (!stack->io.only_asks) {
      icmp_send_unreachable(stack, ip, header, readable, ICMP_CODE_PROTOCOL);
    }
  }
}

static void ipv4_input(struct harp_stack *stack, const struct harp_rx_frame *frame)
{
  uint8_t small[HEADERS_JOINED] __attribute__((aligned(8)));
  uint32_t link = stack->link_header;
  uint32_t total = frame->header_length + frame->payload_length;
  if (total < link + IP_HEADER) {
    COUNT(stack, rx_drop_truncated);
    return;
  }
  struct view view = join_pieces(stack, frame, small);
  if (header_is_valid(stack, &view, total - link) && is_for_this_host(stack, view.ip)) {
    demultiplex(stack, &view, frame);
  }
}

void ip_input(struct harp_stack *stack, const struct harp_rx_frame *frame)
{
  if (stack->link_header == 0) {
    ipv4_input(stack, frame);
    return;
  }
  const uint8_t *eth = frame->header;
  if (frame->header_length < ETH_HEADER) {
    COUNT(stack, rx_drop_truncated);
    return;
  }
  uint16_t type = load_be16(eth + ETH_TYPE);
  bool ours = memcmp(eth + ETH_DST, stack->config.mac, 6) == 0;
  if (type == ETH_TYPE_IPV4 && ours && !stack->tentative) {
    ipv4_input(stack, frame);
  } else if (type == ETH_TYPE_ARP && (ours || (eth[ETH_DST] & 1))) {
    uint8_t arp[ETH_HEADER + ARP_LENGTH];
    arp_input(stack, arp, join(frame, arp, sizeof arp));
  } else {
    COUNT(stack, rx_drop_not_ours);
  }
}
