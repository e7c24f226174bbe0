/* SPDX-License-Identifier: Apache-2.0 */
/* ICMP (RFC 792): echo, and errors that quote our segments (RFC 5927). */
#include "harp/stack/ip/icmp.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/ip_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/limit.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_conn.h"

enum {
  ICMP_RATE = 1000, /* messages sent per second at most (RFC 1812, 4.3.2.8) */
  PMTU_FLOOR = 576, /* lower bound of the MTU in a message (CVE-2019-11479) */
};

static bool may_send(struct harp_stack *stack)
{
  return limit_allows(&stack->icmp_limit, stack->now, ICMP_RATE);
}

static void send_message(struct harp_stack *stack, uint32_t destination, uint8_t *message,
                         uint32_t length)
{
  struct harp_neighbour *neighbour = neighbour_route(stack, ip_next_hop(stack, destination));
  if (!neighbour) {
    return;
  }
  memset(message + ICMP_CHECKSUM, 0, 2);
  uint16_t sum = harp_checksum(message, length);
  memcpy(message + ICMP_CHECKSUM, &sum, 2);
  uint8_t headers[MAX_HEADERS];
  uint32_t header = ip_write_headers(stack, headers, stack->config.address, destination,
                                     IP_PROTOCOL_ICMP, 0, length);
  struct iovec iov[2] = {{headers, header}, {message, length}};
  struct harp_tx_frame frame = {
      .iov = iov, .iov_count = 2, .header_length = (uint16_t)header, .length = header + length};
  ip_transmit(stack, neighbour, &frame);
}

static void answer_echo(struct harp_stack *stack, const uint8_t *ip, const uint8_t *icmp,
                        uint32_t length)
{
  uint32_t peer = load_address(ip + IP_SRC);
  if (IP_HEADER + length > stack->config.mtu || !may_send(stack)) {
    COUNT(stack, icmp_ignored);
    return;
  }
  COUNT(stack, icmp_echo_in);
  uint8_t *reply = stack->linear;
  memmove(reply, icmp, length); /* the request may be in the same buffer */
  reply[ICMP_TYPE] = ICMP_ECHO_REPLY;
  send_message(stack, peer, reply, length);
}

void icmp_send_unreachable(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                           uint32_t length, uint8_t code)
{
  if (!may_send(stack)) {
    return;
  }
  uint8_t message[ICMP_HEADER + 60 + 8] = {0};
  message[ICMP_TYPE] = ICMP_UNREACHABLE;
  message[ICMP_CODE] = code;
  uint32_t quoted = HARP_MIN(length, header_length + 8);
  memcpy(message + ICMP_HEADER, ip, quoted);
  send_message(stack, load_address(ip + IP_SRC), message, ICMP_HEADER + quoted);
}

static void too_big(struct harp_tcp *tcp, uint32_t mtu)
{
  bool lowered = tcp_lower_path_mtu(tcp, HARP_MAX(mtu, (uint32_t)PMTU_FLOOR));
  COUNT_N(tcp->stack, icmp_too_big_in, lowered);
  COUNT_N(tcp->stack, icmp_ignored, !lowered);
}

static void error_input(struct harp_stack *stack, const uint8_t *icmp, uint32_t length)
{
  const uint8_t *quoted = icmp + ICMP_HEADER;
  uint32_t left = length - ICMP_HEADER;
  uint32_t header = left >= IP_HEADER ? (uint32_t)(quoted[0] & 15) * 4 : 0;
  if (header < IP_HEADER || left < header + 8 || quoted[IP_PROTOCOL] != IP_PROTOCOL_TCP ||
      load_address(quoted + IP_SRC) != stack->config.address) {
    COUNT(stack, icmp_ignored);
    return;
  }
  const uint8_t *ports = quoted + header;
  struct harp_tcp *tcp = tcp_lookup(stack, load_address(quoted + IP_DST),
                                    load_be16(ports + TCP_DEST), load_be16(ports + TCP_SOURCE));
  uint32_t seq = load_be32(ports + TCP_SEQUENCE);
  /* Accept only messages about data in flight: a blind attacker must guess the sequence number (RFC
   * 5927, 4.1). */
  if (!tcp || seq_lt(seq, tcp->snd.una) || seq_ge(seq, tcp->snd.nxt)) {
    COUNT(stack, icmp_ignored);
    return;
  }
  if (icmp[ICMP_CODE] == ICMP_CODE_TOO_BIG) {
    too_big(tcp, load_be16(icmp + ICMP_NEXT_MTU));
    return;
  }
  COUNT(stack, icmp_unreachable_in);
  /* A hard error ends a connection in SYN-SENT, but not an established one (RFC 1122, 4.2.3.9,
   * updated by RFC 5461). */
  if (tcp->state == TCP_SYN_SENT &&
      (icmp[ICMP_CODE] == ICMP_CODE_PORT || icmp[ICMP_CODE] == ICMP_CODE_PROTOCOL)) {
    tcp_finish(tcp, -ECONNREFUSED);
  }
}

void icmp_input(struct harp_stack *stack, const uint8_t *ip, uint32_t header_length,
                uint32_t length)
{
  const uint8_t *icmp = ip + header_length;
  length -= header_length;
  if (length < ICMP_HEADER) {
    COUNT(stack, rx_drop_truncated);
    return;
  }
  if (load_be16(ip + IP_TOTAL_LENGTH) - header_length != length ||
      harp_checksum(icmp, length) != 0) {
    COUNT(stack, rx_drop_checksum);
    return;
  }
  if (icmp[ICMP_TYPE] == ICMP_ECHO_REQUEST && icmp[ICMP_CODE] == 0 && !stack->io.only_asks) {
    answer_echo(stack, ip, icmp, length);
  } else if (icmp[ICMP_TYPE] == ICMP_UNREACHABLE) {
    error_input(stack, icmp, length);
  } else {
    COUNT(stack, icmp_ignored);
  }
}
