/* SPDX-License-Identifier: Apache-2.0 */
/* TCP_INFO: the state of a connection in Linux's struct tcp_info. */
#include "harp/headers.h"
#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_wait.h"

static uint8_t congestion_state(const struct harp_tcp *tcp)
{
  static const uint8_t by_recovery[] = {TCP_CA_Open, TCP_CA_Recovery, TCP_CA_Loss};
  bool disorder = tcp->flight.sacked_out || tcp->duplicates;
  return tcp->recovery == RECOVERY_NONE && disorder ? TCP_CA_Disorder : by_recovery[tcp->recovery];
}

/* Bytes sent and not acknowledged, without our SYN and FIN. */
static uint32_t outstanding(const struct harp_tcp *tcp)
{
  if (!tcp_synchronized(tcp)) {
    return 0;
  }
  uint32_t fin = tcp->snd.fin_sent && tcp->snd.una != tcp->snd.nxt;
  return tcp->snd.nxt - tcp->snd.una - fin;
}

/* Fills the totals that only TCP_INFO reports. */
static void fill_totals(const struct harp_tcp *tcp, struct harp_tcp_info *info)
{
  uint64_t window = tcp_wait_time(tcp, TCP_WAIT_WINDOW);
  uint64_t busy = tcp_wait_time(tcp, TCP_WAIT_ACK) + window + tcp_wait_time(tcp, TCP_WAIT_DEVICE);
  info->tcpi_bytes_acked = tcp->bytes_out;
  info->tcpi_bytes_received = tcp->bytes_in;
  info->tcpi_bytes_sent = tcp->bytes_out + outstanding(tcp) + tcp->bytes_retransmitted;
  info->tcpi_bytes_retrans = tcp->bytes_retransmitted;
  info->tcpi_notsent_bytes = tcp->snd.fin_sent ? 0 : tcp->snd.end - tcp->snd.nxt;
  info->tcpi_busy_time = busy / NS_PER_US;
  info->tcpi_rwnd_limited = window / NS_PER_US;
  info->tcpi_dsack_dups = tcp->duplicates_reported;
  info->tcpi_reord_seen = tcp->reorderings;
  info->tcpi_rcv_ooopack = tcp->out_of_order;
  info->tcpi_total_retrans = tcp->retransmits;
  info->tcpi_total_rto = tcp->timeouts;
  info->tcpi_total_rto_recoveries = tcp->timeout_recoveries;
}

void harp_flow_info(const struct harp_tcp *tcp, struct harp_tcp_info *info)
{
  uint32_t mss = HARP_MAX(tcp->snd.mss, 1);
  uint64_t now = tcp->stack->now;
  *info = (struct harp_tcp_info){.tcpi_state = tcp->state};
  info->tcpi_ca_state = congestion_state(tcp);
  info->tcpi_retransmits = tcp->tries;
  info->tcpi_probes = tcp->probes;
  info->tcpi_backoff = tcp->backoff;
  info->tcpi_options = (tcp->timestamps ? TCPI_OPT_TIMESTAMPS : 0) |
                       (tcp->sack ? TCPI_OPT_SACK : 0) |
                       (tcp->window_scaling ? TCPI_OPT_WSCALE : 0);
  info->tcpi_snd_wscale = tcp->snd.wscale & 15;
  info->tcpi_rcv_wscale = tcp->rcv.wscale & 15;
  info->tcpi_rto = (uint32_t)(tcp->rtt.rto / NS_PER_US);
  info->tcpi_ato = tcp->stack->config.delayed_ack_us;
  info->tcpi_snd_mss = tcp->snd.mss;
  info->tcpi_rcv_mss = tcp->ack.rcv_mss;
  info->tcpi_unacked = (tcp->snd.nxt - tcp->snd.una + mss - 1) / mss;
  info->tcpi_sacked = (tcp->flight.sacked_out + mss - 1) / mss;
  info->tcpi_lost = (tcp->flight.lost_out + mss - 1) / mss;
  info->tcpi_retrans = (tcp->flight.retrans_out + mss - 1) / mss;
  info->tcpi_last_data_sent = (uint32_t)((now - tcp->last_send) / NS_PER_MS);
  info->tcpi_last_data_recv = (uint32_t)((now - tcp->last_receive) / NS_PER_MS);
  info->tcpi_last_ack_recv = (uint32_t)((now - tcp->last_progress) / NS_PER_MS);
  info->tcpi_pmtu = tcp->snd.peer_mss + IP_HEADER + TCP_HEADER;
  info->tcpi_rcv_ssthresh = tcp->rcv.buf;
  info->tcpi_rtt = (uint32_t)(tcp->rtt.srtt / NS_PER_US);
  info->tcpi_rttvar = (uint32_t)(tcp->rtt.rttvar / NS_PER_US);
  info->tcpi_snd_ssthresh = tcp->ssthresh == UINT32_MAX ? INT32_MAX : tcp->ssthresh / mss;
  info->tcpi_snd_cwnd = tcp->cwnd / mss;
  info->tcpi_advmss = tcp->advertised_mss;
  info->tcpi_reordering = TCP_DUPTHRESH;
  info->tcpi_rcv_space = tcp->rcv.right - tcp->rcv.nxt;
  info->tcpi_min_rtt = (uint32_t)(tcp->rtt.min == UINT64_MAX ? 0 : tcp->rtt.min / NS_PER_US);
  info->tcpi_snd_wnd = tcp->snd.wnd;
  info->tcpi_rcv_wnd = tcp->rcv.right - tcp->rcv.nxt;
  fill_totals(tcp, info);
}
