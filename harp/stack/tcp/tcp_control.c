/* SPDX-License-Identifier: Apache-2.0 */
/* Segments without payload: SYN, ACK, RST, keepalive probe. */
#include "harp/stack/tcp/tcp_control.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/ip_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/limit.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_transmit.h"

enum {
  RESETS_PER_SECOND = 1000, /* RSTs to unauthenticated peers */
  LEAST_WINDOW_UNITS = 16,  /* least size of a receive buffer in units of the window scale */
};

static int send_plain(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, bool with_sack)
{
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  uint32_t length = tcp_options_write(tcp, options, with_sack);
  return tcp_transmit_bare(tcp, seq, flags, options, length);
}

/* Returns the sequence number of a segment without payload. A peer refuses and answers a segment
 * outside its window (RFC 9293, 3.10.7.4). After a zero-window probe SND.NXT is outside, so an ACK
 * with it would start an endless exchange of ACKs, and a RST with it would have no effect. A number
 * below the peer's RCV.NXT would be as bad. So the limit is the highest right edge, not SND.UNA +
 * SND.WND: the peer may have rounded its window down since. */
static uint32_t number_in_window(const struct harp_tcp *tcp)
{
  return seq_min(tcp->snd.nxt, tcp->snd.edge);
}

void tcp_send_ack(struct harp_tcp *tcp)
{
  if (send_plain(tcp, number_in_window(tcp), FLAG_ACK, true) == 0) {
    COUNT(tcp->stack, tcp_acks_out);
  } else {
    tcp_mark_dirty(tcp); /* the port was full: send it at a later flush */
  }
}

bool tcp_send_probe(struct harp_tcp *tcp)
{
  bool sent = send_plain(tcp, tcp->snd.una - 1, FLAG_ACK, false) != -EAGAIN;
  COUNT_N(tcp->stack, tcp_keepalives, sent);
  return sent;
}

void tcp_commit_offer(struct harp_tcp *tcp)
{
  uint32_t mss = tcp->stack->config.mtu - IP_HEADER - TCP_HEADER;
  tcp->advertised_mss = (uint16_t)(tcp->user_mss ? HARP_MIN(mss, tcp->user_mss) : mss);
  /* The window's unit must be small compared with the buffer, or the field cannot express small
   * windows. */
  while (tcp->rcv.wscale > 0 && tcp->rcv.buf >> tcp->rcv.wscale < LEAST_WINDOW_UNITS) {
    tcp->rcv.wscale--;
  }
}

void tcp_send_syn_once(struct harp_tcp *tcp)
{
  bool with_ack = tcp->state == TCP_SYN_RECV;
  if (tcp->syn_transmits == 0) {
    tcp_commit_offer(tcp);
  }
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  uint32_t length = tcp_options_syn(tcp, options, with_ack);
  if (tcp->syn_transmits < 255) {
    tcp->syn_transmits++;
  }
  tcp_transmit_bare(tcp, tcp->snd.iss, with_ack ? FLAG_SYN | FLAG_ACK : FLAG_SYN, options, length);
}

void tcp_send_syn(struct harp_tcp *tcp)
{
  tcp_send_syn_once(tcp);
  tcp_arm_rto(tcp);
}

void tcp_send_reset(struct harp_tcp *tcp)
{
  if (tcp_synchronized(tcp) || tcp->state == TCP_SYN_RECV) {
    COUNT(tcp->stack, tcp_resets_out);
    send_plain(tcp, number_in_window(tcp), FLAG_RST | FLAG_ACK, false);
  }
}

bool tcp_may_reset(struct harp_stack *stack)
{
  bool may = limit_allows(&stack->reset_limit, stack->now, RESETS_PER_SECOND);
  COUNT_N(stack, tcp_resets_limited, !may);
  return may;
}

void tcp_reply_reset(struct harp_stack *stack, const struct harp_segment *segment)
{
  if (!tcp_may_reset(stack)) {
    return;
  }
  struct harp_neighbour *neighbour = neighbour_route(stack, ip_next_hop(stack, segment->source));
  if (!neighbour) {
    return;
  }
  const struct tcp_addresses addresses = {
      .source = segment->destination,
      .destination = segment->source,
      .source_port = segment->destination_port,
      .destination_port = segment->source_port,
  };
  uint32_t seq = 0, ack = 0;
  uint8_t flags = FLAG_RST;
  if (segment->flags & FLAG_ACK) {
    seq = segment->ack;
  } else {
    ack = segment->seq + segment->length + !!(segment->flags & FLAG_SYN) +
          !!(segment->flags & FLAG_FIN);
    flags |= FLAG_ACK;
  }
  COUNT(stack, tcp_resets_out);
  tcp_transmit_unconnected(stack, neighbour, &addresses, seq, ack, flags);
}
