/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SYN cookies (RFC 4987, 3.6). The stack answers a SYN but keeps no state if there is no room for a
 * half-open connection. It encodes the state in the SYN-ACK, and the peer's ACK brings it back. The
 * sequence number holds a keyed hash and an index of the MSS. The low bits of the timestamp hold
 * the other options. Without timestamps these options are lost.
 */
#include "harp/stack/tcp/tcp_cookie.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
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
  COOKIES_PER_SECOND = 10000, /* answers to a flood must cost little compared with its reception */
  SIZE_BITS = 3,              /* bits of the sequence number: index into sizes */
  SCALE_BITS = 4,             /* bits of the timestamp: the peer's window scale */
  NO_SCALE = 15,              /* the peer offered none (RFC 7323, 2.3: 14 is the largest) */
  SACK_BIT = 1 << SCALE_BITS,
  OPTION_MASK = 2 * SACK_BIT - 1,
};

/* A separate key: a cookie reveals nothing about other hashes with the seed. */
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

/* The hash does not cover the index: the peer may choose its MSS anyway. */
static uint32_t cookie(const struct harp_segment *in, const struct harp_stack *stack, uint32_t irs,
                       uint64_t period, uint32_t index)
{
  const uint64_t key[2] = {stack->config.seed[0] ^ COOKIE_KEY, stack->config.seed[1]};
  uint32_t ports = (uint32_t)in->source_port << 16 | in->destination_port;
  uint64_t hash = harp_siphash(key, tcp_key(in->source, ports),
                               (uint64_t)irs << 32 | (uint32_t)period);
  return (uint32_t)hash << SIZE_BITS | index;
}

/* The latest clock value up to now that has the options in its low bits. Later segments carry later
 * timestamps. */
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
  struct harp_segment kept = *syn; /* the options that the cookie preserves */
  if (!stack->config.timestamps || !syn->has_timestamp) {
    kept.sack_permitted = false;
    kept.window_scale = -1;
  }
  tcp_take_syn(&tcp, listener, &kept);
  uint64_t period = stack->now >> COOKIE_PERIOD_SHIFT;
  tcp_set_iss(&tcp, cookie(syn, stack, syn->seq, period, size_index(tcp.snd.peer_mss)));
  tcp.ts.offset += stamp(&tcp) - tcp_timestamp(&tcp);
  tcp.state = TCP_SYN_RECV;
  /* The entry is not attached: only this answer uses it. */
  tcp.neighbour = neighbour_route(stack, tcp.next_hop);
  COUNT(stack, tcp_cookies_out);
  tcp_send_syn_once(&tcp);
  tcp_cookie_expect(listener);
}

/* Whether a cookie of this listener may still be valid. */
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
    return COOKIE_REFUSED; /* checked before another connection is dropped for this one; the peer's
                              next segment carries the cookie again */
  }
  struct harp_endpoint peer = {segment->source, segment->source_port};
  struct harp_tcp *made = *tcp ? *tcp : tcp_create(stack, peer, listener->port, OPENING_COOKIE);
  if (!made) {
    COUNT(stack, tcp_listen_drops);
    return COOKIE_REFUSED;
  }
  uint32_t scale = segment->echo & (SACK_BIT - 1);
  struct harp_segment syn = *segment; /* the SYN, reconstructed */
  syn.seq = segment->seq - 1;
  syn.mss = sizes[index];
  syn.sack_permitted = segment->has_timestamp && (segment->echo & SACK_BIT);
  syn.window_scale = segment->has_timestamp && scale != NO_SCALE ? (int8_t)scale : -1;
  made->syn_transmits = 0; /* the cookie's send time is unknown: no RTT sample */
  tcp_take_syn(made, listener, &syn);
  tcp_commit_offer(made);
  tcp_set_iss(made, number);
  /* The SYN-ACK offered this window. */
  made->rcv.right = made->rcv.nxt + HARP_MIN(made->rcv.buf, 65535u);
  COUNT(stack, tcp_cookies_in);
  *tcp = made;
  return COOKIE_TAKEN;
}
