/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time and retransmission timeout (RFC 6298). */

#include "harp/stack/tcp/tcp_rtt.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_timer.h"

/* RFC 6298, 2.3. The floor applies to the RTTVAR term, as in Linux: a peer may delay an ACK by that
 * time, whatever the RTT. */
static void set_rto(struct harp_tcp *tcp)
{
  uint64_t rto = tcp->rtt.srtt + HARP_MAX(4 * tcp->rtt.rttvar, tcp->rtt.rto_min);
  tcp->rtt.rto = HARP_MIN(rto, tcp->stack->config.rto_max_us * NS_PER_US);
}

/* RFC 6298, the note after 5.7: a new measurement ends the backoff. */
static void end_backoff(struct harp_tcp *tcp)
{
  tcp->backoff = 0;
  tcp_arm_rto(tcp);
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
  if (tcp->backoff) {
    end_backoff(tcp);
  }
}

void tcp_rtt_sample_echo(struct harp_tcp *tcp, uint32_t echo)
{
  uint64_t longest = tcp_timestamp_age(tcp, echo);
  if (!tcp_rtt_is_sample(tcp->stack, longest)) {
    return;
  }
  uint64_t rtt = longest - HARP_MIN(longest, TIMESTAMP_TICK);
  if (rtt > tcp->rtt.srtt) {
    tcp_rtt_sample(tcp, HARP_MIN(rtt, tcp->rtt.rto));
  }
  end_backoff(tcp);
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
