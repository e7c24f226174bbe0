/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */

/* RFC 6298, 2.3, with Linux's floor, which stands for the variation: a peer may hold an answer back
 * for as long, however long the round trip is. */
#include "harp/stack/tcp/tcp_rtt.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

void tcp_set_rto(struct harp_tcp *tcp)
{
  uint64_t rto = tcp->srtt + HARP_MAX(4 * tcp->rttvar, tcp->rto_min);
  tcp->rto = HARP_MIN(rto, tcp->stack->config.rto_max_us * NS_PER_US);
}

/* RFC 6298, 2; with a sample per acknowledgement the gains stay those of one
 * per round trip closely enough (RFC 7323, appendix G). */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt)
{
  rtt = HARP_MAX(rtt, 1);
  if (tcp->srtt == 0) {
    tcp->srtt = rtt;
    tcp->rttvar = rtt / 2;
  } else {
    uint64_t error = rtt > tcp->srtt ? rtt - tcp->srtt : tcp->srtt - rtt;
    tcp->rttvar = (3 * tcp->rttvar + error) / 4;
    tcp->srtt = (7 * tcp->srtt + rtt) / 8;
  }
  tcp->min_rtt = HARP_MIN(tcp->min_rtt, rtt);
  tcp_set_rto(tcp);
}
