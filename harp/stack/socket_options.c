/* SPDX-License-Identifier: Apache-2.0 */
/* getsockopt and setsockopt, with Linux's names and meanings. */
#include <netinet/in.h>

#include "harp/stack/socket.h"

enum {
  SNDBUF_MIN = 4096,
  RCVBUF_MIN = 256,
  BUFFER_MAX = 1 << 30,
};

static uint32_t clamp(int value, uint32_t low, uint32_t high) {
  uint32_t v = value < 0 ? 0 : (uint32_t)value;
  return HARP_MIN(HARP_MAX(v, low), high);
}

/* --- Integers --- */

static int set_socket_level(struct harp_socket *s, int option, int value) {
  switch (option) {
  case SO_KEEPALIVE:
    s->keepalive = value != 0;
    socket_apply_keepalive(s);
    return 0;
  case SO_SNDBUF:
    s->sndbuf = clamp(value, SNDBUF_MIN, BUFFER_MAX);
    return 0;
  case SO_RCVBUF:
    s->rcvbuf = clamp(value, RCVBUF_MIN, BUFFER_MAX);
    if (s->tcp) {
      s->tcp->rcvbuf = s->rcvbuf;
    }
    if (s->listener) {
      s->listener->rcvbuf = s->rcvbuf;
    }
    return 0;
  case SO_REUSEADDR: /* addresses in TIME-WAIT never stand in the way here */
    return 0;
  default:
    return -ENOPROTOOPT;
  }
}

static int set_mss(struct harp_socket *s, int value) {
  if (value < TCP_MSS_FLOOR || value > 65495) {
    return -EINVAL;
  }
  s->mss = (uint32_t)value;
  if (s->listener) {
    s->listener->user_mss = s->mss;
  }
  if (s->tcp) {
    s->tcp->user_mss = s->mss;
    tcp_set_mss(s->tcp);
  }
  return 0;
}

static int set_keepalive_time(struct harp_socket *s, uint32_t *field, int value) {
  if (value < 1 || value > 32767) {
    return -EINVAL;
  }
  *field = (uint32_t)value;
  if (s->keepalive) {
    socket_apply_keepalive(s);
  }
  return 0;
}

static void push_out(struct harp_socket *s) {
  if (s->tcp) {
    tcp_mark_dirty(s->tcp);
    harp_stack_flush(s->stack);
  }
}

static int set_tcp_level(struct harp_socket *s, int option, int value) {
  switch (option) {
  case TCP_NODELAY:
    s->nodelay = value != 0;
    if (s->tcp) {
      s->tcp->nodelay = s->nodelay;
      s->tcp->push_end = s->nodelay ? s->tcp->snd_end : s->tcp->push_end;
    }
    push_out(s);
    return 0;
  case TCP_CORK:
    s->cork = value != 0;
    if (s->tcp) {
      s->tcp->cork = s->cork;
    }
    push_out(s);
    return 0;
  case TCP_MAXSEG:
    return set_mss(s, value);
  case TCP_USER_TIMEOUT:
    if (value < 0) {
      return -EINVAL;
    }
    s->user_timeout_ms = (uint32_t)value;
    if (s->tcp) {
      harp_flow_set_timeout(s->tcp, s->user_timeout_ms);
    }
    return 0;
  case TCP_KEEPIDLE:
    return set_keepalive_time(s, &s->keep_idle_s, value);
  case TCP_KEEPINTVL:
    return set_keepalive_time(s, &s->keep_interval_s, value);
  case TCP_KEEPCNT:
    return value > 127 ? -EINVAL : set_keepalive_time(s, &s->keep_count, value);
  default:
    return -ENOPROTOOPT;
  }
}

int harp_tcp_setsockopt(struct harp_stack *stack, int number, int level, int option,
                        const void *value, socklen_t length) {
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (level == SOL_SOCKET && option == SO_LINGER) {
    if (length < sizeof s->linger) {
      return -EINVAL;
    }
    memcpy(&s->linger, value, sizeof s->linger);
    return 0;
  }
  int number_value;
  if (length < sizeof number_value) {
    return -EINVAL;
  }
  memcpy(&number_value, value, sizeof number_value);
  if (level == SOL_SOCKET) {
    return set_socket_level(s, option, number_value);
  }
  return level == IPPROTO_TCP ? set_tcp_level(s, option, number_value) : -ENOPROTOOPT;
}

/* --- Reading --- */

static uint8_t congestion_state(const struct harp_tcp *tcp) {
  static const uint8_t by_recovery[] = {TCP_CA_Open, TCP_CA_Recovery, TCP_CA_Loss};
  return by_recovery[tcp->recovery];
}

static void fill_info(const struct harp_socket *s, struct tcp_info *info) {
  *info = (struct tcp_info){.tcpi_state = TCP_CLOSE};
  const struct harp_tcp *tcp = s->tcp;
  if (!tcp) {
    info->tcpi_state = s->listener ? TCP_LISTEN : TCP_CLOSE;
    return;
  }
  uint32_t mss = HARP_MAX(tcp->mss, 1);
  uint64_t now = s->stack->now;
  info->tcpi_state = tcp->state;
  info->tcpi_ca_state = congestion_state(tcp);
  info->tcpi_retransmits = tcp->backoff;
  info->tcpi_probes = tcp->probes;
  info->tcpi_backoff = tcp->backoff;
  info->tcpi_options = (tcp->timestamps ? TCPI_OPT_TIMESTAMPS : 0) |
                       (tcp->sack ? TCPI_OPT_SACK : 0) |
                       (tcp->window_scaling ? TCPI_OPT_WSCALE : 0);
  info->tcpi_snd_wscale = tcp->snd_wscale & 15;
  info->tcpi_rcv_wscale = tcp->rcv_wscale & 15;
  info->tcpi_rto = (uint32_t)(tcp->rto / NS_PER_US);
  info->tcpi_ato = s->stack->config.delayed_ack_us;
  info->tcpi_snd_mss = tcp->mss;
  info->tcpi_rcv_mss = tcp->rcv_mss;
  info->tcpi_unacked = (tcp->snd_nxt - tcp->snd_una + mss - 1) / mss;
  info->tcpi_sacked = (tcp->sacked_out + mss - 1) / mss;
  info->tcpi_lost = (tcp->lost_out + mss - 1) / mss;
  info->tcpi_retrans = (tcp->retrans_out + mss - 1) / mss;
  info->tcpi_last_data_sent = (uint32_t)((now - tcp->last_send) / NS_PER_MS);
  info->tcpi_last_data_recv = (uint32_t)((now - tcp->last_receive) / NS_PER_MS);
  info->tcpi_last_ack_recv = (uint32_t)((now - tcp->last_progress) / NS_PER_MS);
  info->tcpi_pmtu = tcp->peer_mss + IP_HEADER + TCP_HEADER;
  info->tcpi_rcv_ssthresh = tcp->rcvbuf;
  info->tcpi_rtt = (uint32_t)(tcp->srtt / NS_PER_US);
  info->tcpi_rttvar = (uint32_t)(tcp->rttvar / NS_PER_US);
  info->tcpi_snd_ssthresh = tcp->ssthresh == UINT32_MAX ? INT32_MAX : tcp->ssthresh / mss;
  info->tcpi_snd_cwnd = tcp->cwnd / mss;
  info->tcpi_advmss = s->stack->config.mtu - IP_HEADER - TCP_HEADER;
  info->tcpi_reordering = TCP_DUPTHRESH;
  info->tcpi_rcv_space = tcp->rcv_right - tcp->rcv_nxt;
  info->tcpi_total_retrans = tcp->retransmits;
}

static int get_integer(struct harp_socket *s, int level, int option, int *value) {
  if (level == SOL_SOCKET) {
    switch (option) {
    case SO_ERROR:
      *value = -socket_take_error(s);
      return 0;
    case SO_KEEPALIVE:
      *value = s->keepalive;
      return 0;
    case SO_SNDBUF:
      *value = (int)s->sndbuf;
      return 0;
    case SO_RCVBUF:
      *value = (int)s->rcvbuf;
      return 0;
    case SO_ACCEPTCONN:
      *value = s->listener != NULL;
      return 0;
    case SO_TYPE:
      *value = SOCK_STREAM;
      return 0;
    default:
      return -ENOPROTOOPT;
    }
  }
  switch (option) {
  case TCP_NODELAY:
    *value = s->nodelay;
    return 0;
  case TCP_CORK:
    *value = s->cork;
    return 0;
  case TCP_MAXSEG:
    *value = (int)(s->tcp && s->connected ? s->tcp->mss : s->mss ? s->mss : TCP_DEFAULT_MSS);
    return 0;
  case TCP_USER_TIMEOUT:
    *value = (int)s->user_timeout_ms;
    return 0;
  case TCP_KEEPIDLE:
    *value = (int)s->keep_idle_s;
    return 0;
  case TCP_KEEPINTVL:
    *value = (int)s->keep_interval_s;
    return 0;
  case TCP_KEEPCNT:
    *value = (int)s->keep_count;
    return 0;
  default:
    return -ENOPROTOOPT;
  }
}

static void copy_out(const void *from, size_t size, void *value, socklen_t *length) {
  *length = (socklen_t)HARP_MIN(size, (size_t)*length);
  memcpy(value, from, *length);
}

int harp_tcp_getsockopt(struct harp_stack *stack, int number, int level, int option, void *value,
                        socklen_t *length) {
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (level == SOL_SOCKET && option == SO_LINGER) {
    copy_out(&s->linger, sizeof s->linger, value, length);
    return 0;
  }
  if (level == IPPROTO_TCP && option == TCP_INFO) {
    struct tcp_info info;
    fill_info(s, &info);
    copy_out(&info, sizeof info, value, length);
    return 0;
  }
  if (level == IPPROTO_TCP && option == TCP_CONGESTION) {
    const char *name = harp_cc_find(stack->config.cc)->name;
    copy_out(name, strlen(name) + 1, value, length);
    return 0;
  }
  if (level != SOL_SOCKET && level != IPPROTO_TCP) {
    return -ENOPROTOOPT;
  }
  int number_value;
  int result = get_integer(s, level, option, &number_value);
  if (result == 0) {
    copy_out(&number_value, sizeof number_value, value, length);
  }
  return result;
}
