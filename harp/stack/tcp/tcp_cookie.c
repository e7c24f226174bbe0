/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SYN cookies (RFC 4987, 3.6): a handshake for which there is no room is
 * answered all the same, and forgotten. What must be known of it later stands
 * in the SYN-ACK's own numbers, which only the peer's acknowledgement brings
 * back: in the sequence number a keyed hash and a step of the MSS, in the low
 * bits of the timestamp the other options. Without timestamps those are lost.
 */
#include "harp/stack/tcp/tcp_cookie.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/headers.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/limit.h"
#include "harp/stack/seq.h"
#include "harp/stack/siphash.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_segment.h"

enum {
  COOKIES_PER_SECOND = 10000, /* so that a flood's answers cost little beside its reading */
  SIZE_BITS = 3,              /* of the sequence number: index into sizes */
  SCALE_BITS = 4,             /* of the timestamp: the peer's window scale */
  NO_SCALE = 15,              /* it offered none (RFC 7323, 2.3: 14 is the largest) */
  SACK_BIT = 1 << SCALE_BITS,
  OPTION_MASK = 2 * SACK_BIT - 1,
};

/* The key is one of its own: a cookie tells nothing about other hashes under the seed. */
#define COOKIE_KEY 0x53594e20636f6f6bull

static const uint16_t sizes[1 << SIZE_BITS] = {
    TCP_MSS_FLOOR, TCP_DEFAULT_MSS, 1200, 1360, 1440, 1460, 4016, 8960};

static uint32_t size_index(uint32_t mss)
{
  uint32_t index = (1 << SIZE_BITS) - 1;
  while (index > 0 && sizes[index] > mss) {
    index--;
  }
  return index;
}

/* The index needs no hash: the MSS is what the peer says it is. */
static uint32_t cookie(const struct harp_segment *in, const struct harp_stack *stack, uint32_t irs,
                       uint64_t period, uint32_t index)
{
  const uint64_t key[2] = {stack->config.seed[0] ^ COOKIE_KEY, stack->config.seed[1]};
  uint32_t ports = (uint32_t)in->source_port << 16 | in->destination_port;
  uint64_t hash = harp_siphash(key, tcp_key(in->source, ports),
                               (uint64_t)irs << 32 | (uint32_t)period);
  return (uint32_t)hash << SIZE_BITS | index;
}

/* The clock's latest value that ends in the options: later segments carry a later one. */
static uint32_t stamp(const struct harp_tcp *tcp)
{
  uint32_t clock = tcp_timestamp(tcp);
  uint32_t options = tcp->window_scaling ? tcp->snd.wscale : NO_SCALE;
  options |= tcp->sack ? SACK_BIT : 0;
  uint32_t value = (clock & ~(uint32_t)OPTION_MASK) | options;
  return seq_gt(value, clock) ? value - OPTION_MASK - 1 : value;
}

void tcp_cookie_send(struct harp_listener *listener, const struct harp_segment *syn)
{
  struct harp_stack *stack = listener->stack;
  struct harp_tcp tcp;
  if (!limit_allows(&stack->cookie_limit, stack->now, COOKIES_PER_SECOND) ||
      !tcp_initialise(&tcp, stack, (struct harp_endpoint){syn->source, syn->source_port},
                      listener->port)) {
    COUNT(stack, tcp_listen_drops);
    return;
  }
  struct harp_segment kept = *syn; /* what will be known of it */
  if (!stack->config.timestamps || !syn->has_timestamp) {
    kept.sack_permitted = false;
    kept.window_scale = -1;
  }
  tcp_take_syn(&tcp, listener, &kept);
  uint64_t period = stack->now >> COOKIE_PERIOD_SHIFT;
  tcp_set_iss(&tcp, cookie(syn, stack, syn->seq, period, size_index(tcp.snd.peer_mss)));
  tcp.ts.offset += stamp(&tcp) - tcp_timestamp(&tcp);
  tcp.state = TCP_SYN_RECV;
  tcp.neighbour = neighbour_route(stack, tcp.next_hop); /* not kept: it ends with this answer */
  COUNT(stack, tcp_cookies_out);
  tcp_send_syn_once(&tcp);
  tcp_cookie_expect(listener);
}

/* Whether a cookie of this listener may still hold. */
static bool cookies_out(const struct harp_listener *listener)
{
  return listener->cookies &&
         (listener->stack->now >> COOKIE_PERIOD_SHIFT) - listener->cookie_period <= 1;
}

static bool holds(const struct harp_stack *stack, const struct harp_segment *in, uint32_t number,
                  uint32_t index)
{
  uint64_t period = stack->now >> COOKIE_PERIOD_SHIFT;
  uint32_t irs = in->seq - 1;
  return number == cookie(in, stack, irs, period, index) ||
         number == cookie(in, stack, irs, period - 1, index);
}

enum tcp_cookie tcp_cookie_take(struct harp_listener *listener, const struct harp_segment *segment,
                                struct harp_tcp **tcp)
{
  struct harp_stack *stack = listener->stack;
  if (!cookies_out(listener) || (segment->flags & FLAG_SYN)) {
    return COOKIE_NONE;
  }
  uint32_t number = segment->ack - 1, index = number & ((1 << SIZE_BITS) - 1);
  if (!holds(stack, segment, number, index)) {
    COUNT(stack, tcp_cookies_refused);
    return COOKIE_REFUSED;
  }
  if (!*tcp && tcp_listener_full(listener)) {
    return COOKIE_REFUSED; /* before anybody makes room: its next one brings the cookie once more */
  }
  struct harp_endpoint peer = {segment->source, segment->source_port};
  struct harp_tcp *made = *tcp ? *tcp : tcp_create(stack, peer, listener->port, OPENING_COOKIE);
  if (!made) {
    COUNT(stack, tcp_listen_drops);
    return COOKIE_REFUSED;
  }
  uint32_t scale = segment->echo & (SACK_BIT - 1);
  struct harp_segment syn = *segment; /* as it must have been */
  syn.seq = segment->seq - 1;
  syn.mss = sizes[index];
  syn.sack_permitted = segment->has_timestamp && (segment->echo & SACK_BIT);
  syn.window_scale = segment->has_timestamp && scale != NO_SCALE ? (int8_t)scale : -1;
  made->syn_transmits = 0; /* nobody knows when the cookie was sent: it times nothing */
  tcp_take_syn(made, listener, &syn);
  tcp_commit_offer(made);
  tcp_set_iss(made, number);
  made->rcv.right = made->rcv.nxt + HARP_MIN(made->rcv.buf, 65535u); /* as the SYN-ACK said */
  COUNT(stack, tcp_cookies_in);
  *tcp = made;
  return COOKIE_TAKEN;
}
