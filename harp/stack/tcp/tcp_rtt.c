/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */

#include "harp/stack/tcp/tcp_rtt.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

/* RFC 6298, 2.3. The floor applies to the RTTVAR term, as in Linux: a peer may delay an ACK by that
 * time, whatever the RTT. */
static void set_rto(struct harp_tcp *tcp)
{
  uint64_t rto = tcp->rtt.srtt + HARP_MAX(4 * tcp->rtt.rttvar, tcp->rtt.rto_min);
  tcp->rtt.rto = HARP_MIN(rto, tcp->stack->config.rto_max_us * NS_PER_US);
}

/* RFC 6298, 2. The gains are those of one sample per round trip; with one per ACK they are close
 * enough (RFC 7323, appendix G). */
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt)
{
  if (tcp->rtt.srtt == 0) {
    tcp->rtt.srtt = rtt;
    tcp->rtt.rttvar = rtt / 2;
  } else {
    uint64_t error = rtt > tcp->rtt.srtt ? rtt - tcp->rtt.srtt : tcp->rtt.srtt - rtt;
    tcp->rtt.rttvar = (3 * tcp->rtt.rttvar + error) / 4;
    tcp->rtt.srtt = (7 * tcp->rtt.srtt + rtt) / 8;
  }
  tcp->rtt.min = HARP_MIN(tcp->rtt.min, rtt);
  tcp->shared_ack.sampled_ms = (uint32_t)(tcp->stack->now / NS_PER_MS);
  set_rto(tcp);
}

void tcp_rtt_sample_handshake(struct harp_tcp *tcp)
{
  uint64_t rtt = HARP_MAX(tcp->stack->now - tcp->syn_sent, 1);
  if (tcp->syn_transmits > 1) {
    /* RFC 6298, 5.7: three seconds if the RTO was one; it was too short. */
    const struct harp_stack_config *config = &tcp->stack->config;
    tcp->rtt.rto = HARP_MIN(3ull * config->rto_initial_us, config->rto_max_us) * NS_PER_US;
  } else if (tcp->syn_transmits == 1 && tcp_rtt_is_sample(tcp->stack, rtt)) {
    tcp_rtt_sample(tcp, rtt);
  }
}

void tcp_set_rto_min(struct harp_tcp *tcp, uint64_t rto_min)
{
  tcp->rtt.rto_min = rto_min;
  if (tcp->rtt.srtt) {
    set_rto(tcp);
  }
}
