/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proportional Rate Reduction (RFC 9937): in fast recovery, the data sent is proportional to the
 * data delivered, until the data in flight equals ssthresh.
 */
#include "harp/stack/tcp/tcp_prr.h"

#include "harp/stack/bytes.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_cwnd.h"

void tcp_prr_begin(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  tcp->prr.credit = tcp->sack ? 0 : (TCP_DUPTHRESH - 1) * tcp->snd.mss;
  /* RecoverFS: the data in flight before this acknowledgement. */
  uint32_t arrived = tcp->sack ? tcp->flight.sacked_out - result->delivered : tcp->prr.credit;
  tcp->prr.recover_fs = HARP_MAX(tcp->snd.nxt - tcp->snd.una - arrived, tcp->snd.mss);
  tcp->prr.delivered = tcp->prr.out = 0;
}

/* Returns DeliveredData. Without SACK a duplicate ACK counts as one segment. A later ACK that
 * advances SND.UNA must not count these segments again. Duplicate ACKs count for no more than the
 * data in flight, because a peer can forge them. */
static uint32_t delivered_data(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (tcp->sack) {
    return result->delivered;
  }
  if (result->duplicate) {
    if (tcp->snd.nxt - tcp->snd.una < tcp->prr.credit + tcp->snd.mss) {
      return 0;
    }
    tcp->prr.credit += tcp->snd.mss;
    return tcp->snd.mss;
  }
  uint32_t behind = result->delivered - HARP_MIN(result->delivered, tcp->snd.mss); /* the hole */
  uint32_t counted = HARP_MIN(behind, tcp->prr.credit);
  tcp->prr.credit -= counted;
  return result->delivered - counted;
}

void tcp_prr_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result, uint32_t lost)
{
  uint32_t delivered = delivered_data(tcp, result);
  if (delivered == 0 && tcp->prr.out > 0) {
    /* Only delivered data releases data. RACK's timer finds losses without any: cwnd falls with the
     * data in flight, or it would release the retransmissions of all of them at once. */
    tcp_cwnd_set_in_recovery(tcp, tcp->cwnd - HARP_MIN(lost, tcp->cwnd));
    return;
  }
  /* RFC 9937's SafeACK */
  bool safe = tcp->snd.una != result->una_before && lost == 0;
  tcp->prr.delivered += delivered;
  uint32_t pipe = tcp_in_flight(tcp);
  int64_t send;
  if (pipe > tcp->ssthresh) {
    uint64_t share = ((uint64_t)tcp->prr.delivered * tcp->ssthresh + tcp->prr.recover_fs - 1) /
                     tcp->prr.recover_fs;
    send = (int64_t)share - tcp->prr.out;
  } else {
    send = HARP_MAX((int64_t)tcp->prr.delivered - tcp->prr.out, (int64_t)delivered);
    send += safe ? tcp->snd.mss : 0;
    send = HARP_MIN((int64_t)(tcp->ssthresh - pipe), send);
  }
  /* The first retransmission is always sent, also if a timer detected the loss and nothing was
   * delivered. */
  int64_t least = tcp->prr.out == 0 ? tcp->snd.mss : 0;
  tcp_cwnd_set_in_recovery(tcp, pipe + (uint32_t)HARP_MAX(send, least));
}

void tcp_prr_on_send(struct harp_tcp *tcp, uint32_t length) { tcp->prr.out += length; }
