/* SPDX-License-Identifier: Apache-2.0 */
/* Reno's congestion avoidance (RFC 5681, 3.1), with byte counting (RFC 3465). */
#include "harp/stack/bytes.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"

static void reno_init(struct harp_tcp *tcp) { tcp->cc = (struct harp_cc){.ops = &harp_cc_reno}; }

/* Adds one segment for each acknowledged window. */
static uint32_t reno_on_ack(struct harp_tcp *tcp, uint32_t acked)
{
  struct harp_cc *cc = &tcp->cc;
  cc->acked_bytes += acked;
  if (cc->acked_bytes >= tcp->cwnd) {
    cc->acked_bytes -= tcp->cwnd;
    return tcp->snd.mss;
  }
  return 0;
}

static uint32_t reno_on_loss(struct harp_tcp *tcp)
{
  tcp->cc.acked_bytes = 0;
  return HARP_MAX(tcp->cwnd / 2, 2 * tcp->snd.mss);
}

static void reno_on_undo(struct harp_tcp *tcp) { tcp->cc.acked_bytes = 0; }

const struct harp_cc_ops harp_cc_reno = {
    .name = "reno",
    .init = reno_init,
    .on_ack = reno_on_ack,
    .on_loss = reno_on_loss,
    .on_undo = reno_on_undo,
};
