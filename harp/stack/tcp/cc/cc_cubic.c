/* SPDX-License-Identifier: Apache-2.0 */
/* CUBIC (RFC 9438) in integers: windows in 1/1024 segments, times in ms. */
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"

enum {
  UNIT = 1024,        /* fractions of a segment */
  BETA_NUMERATOR = 7, /* multiplicative decrease 0.7 (4.6) */
  BETA_DENOMINATOR = 10,
  ALPHA = 542,            /* 3 (1 - beta) / (1 + beta) = 0.529, in 1/1024 (4.3) */
  MAX_OFFSET_MS = 100000, /* keeps the cube within 64 bits */
};

static uint32_t to_units(const struct harp_tcp *tcp, uint32_t bytes)
{
  return (uint32_t)((uint64_t)bytes * UNIT / tcp->snd.mss);
}

static uint32_t to_bytes(const struct harp_tcp *tcp, uint64_t units)
{
  return (uint32_t)HARP_MIN(units * tcp->snd.mss / UNIT, (uint64_t)1 << 30);
}

/* Integer cube root, bit by bit from the top. */
static uint32_t cube_root(uint64_t x)
{
  uint64_t root = 0;
  for (int shift = 63; shift >= 0; shift -= 3) {
    root <<= 1;
    uint64_t step = 3 * root * (root + 1) + 1;
    if (x >> shift >= step) {
      x -= step << shift;
      root++;
    }
  }
  return (uint32_t)root;
}

static void cubic_init(struct harp_tcp *tcp) { tcp->cc = (struct harp_cc){.ops = &harp_cc_cubic}; }

static void begin_epoch(struct harp_tcp *tcp, uint32_t window)
{
  struct harp_cc *cc = &tcp->cc;
  cc->epoch = HARP_MAX(tcp->stack->now, 1);
  cc->w_est = window;
  cc->w_est_rest = 0;
  cc->acked_bytes = 0;
  if (window < cc->w_max) {
    /* K = cbrt((W_max - cwnd) / C) seconds, C = 0.4 (4.2). */
    cc->k_ms = cube_root((uint64_t)(cc->w_max - window) * 2500000000ull / UNIT);
    cc->origin = cc->w_max;
  } else {
    cc->k_ms = 0;
    cc->origin = window;
  }
}

/* W_cubic(t) = C (t - K)^3 + W_max (4.2), at one RTT from now. */
static uint32_t target_window(const struct harp_tcp *tcp, uint32_t window)
{
  const struct harp_cc *cc = &tcp->cc;
  int64_t t = (int64_t)((tcp->stack->now - cc->epoch + tcp->rtt.srtt) / NS_PER_MS);
  int64_t d = t - (int64_t)cc->k_ms;
  d = HARP_MAX(HARP_MIN(d, (int64_t)MAX_OFFSET_MS), -(int64_t)MAX_OFFSET_MS);
  int64_t delta = d * d * d / 1000000 * 4 * UNIT / 10000; /* 0.4 (d / 1000)^3 */
  int64_t target = (int64_t)cc->origin + delta;
  target = HARP_MAX(target, (int64_t)window);
  return (uint32_t)HARP_MIN(target, (int64_t)window * 3 / 2);
}

/* Excludes the time since the last acknowledgement from the epoch if it is longer than an RTO: cwnd
 * was not the limit, and has not grown (4.2). */
static void exclude_unlimited_time(struct harp_tcp *tcp)
{
  struct harp_cc *cc = &tcp->cc;
  uint64_t gap = tcp->stack->now - cc->last_ack;
  if (cc->epoch && gap > tcp->rtt.rto) {
    cc->epoch += gap;
  }
  cc->last_ack = tcp->stack->now;
}

static uint32_t cubic_on_ack(struct harp_tcp *tcp, uint32_t acked)
{
  struct harp_cc *cc = &tcp->cc;
  exclude_unlimited_time(tcp);
  cc->acked_bytes += acked;
  if (cc->acked_bytes < tcp->snd.mss) {
    return 0;
  }
  uint32_t bytes = cc->acked_bytes;
  cc->acked_bytes = 0;
  uint32_t window = to_units(tcp, tcp->cwnd);
  if (cc->epoch == 0) {
    begin_epoch(tcp, window);
  }
  uint32_t target = target_window(tcp, window);
  /* W_est, the window that Reno would have (4.3). Its growth equals Reno's once it has reached
   * W_max. The remainder of the division is kept, because at 500 segments the quotient is often 0.
   */
  cc->w_est_rest += (uint64_t)(cc->w_est < cc->w_max ? ALPHA : UNIT) * bytes;
  cc->w_est += (uint32_t)(cc->w_est_rest / tcp->cwnd);
  cc->w_est_rest %= tcp->cwnd;
  if (target < cc->w_est) {
    return HARP_MAX(tcp->cwnd, to_bytes(tcp, cc->w_est)) - tcp->cwnd;
  }
  return (uint32_t)((uint64_t)bytes * (target - window) / HARP_MAX(window, 1));
}

static uint32_t cubic_on_loss(struct harp_tcp *tcp)
{
  struct harp_cc *cc = &tcp->cc;
  uint32_t window = to_units(tcp, tcp->cwnd);
  cc->prior_w_max = cc->w_max;
  /* Fast convergence (4.7): release bandwidth to new flows. */
  cc->w_max = window < cc->w_max
                  ? (uint32_t)((uint64_t)window * (BETA_DENOMINATOR + BETA_NUMERATOR) /
                               (2 * BETA_DENOMINATOR))
                  : window;
  cc->epoch = 0;
  uint64_t ssthresh = (uint64_t)tcp->cwnd * BETA_NUMERATOR / BETA_DENOMINATOR;
  return (uint32_t)HARP_MAX(ssthresh, (uint64_t)2 * tcp->snd.mss);
}

static void cubic_on_undo(struct harp_tcp *tcp)
{
  tcp->cc.w_max = tcp->cc.prior_w_max;
  tcp->cc.epoch = 0;
}

const struct harp_cc_ops harp_cc_cubic = {
    .name = "cubic",
    .init = cubic_init,
    .on_ack = cubic_on_ack,
    .on_loss = cubic_on_loss,
    .on_undo = cubic_on_undo,
};
