/* SPDX-License-Identifier: Apache-2.0 */
/* getsockopt and setsockopt, with Linux's names and meanings. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/socket/socket.h"

enum {
  SNDBUF_MIN = 4096,
  RCVBUF_MIN = 256,
  BUFFER_MAX = 1 << 30,
  /* Linux's limits. */
  MSS_MAX = 65495, /* of a packet of 65535 bytes */
  KEEP_TIME_MAX = 32767,
  KEEP_COUNT_MAX = 127,
  CONGESTION_NAME_SIZE = 16, /* TCP_CA_NAME_MAX */
};

static uint32_t clamp(int value, uint32_t low, uint32_t high)
{
  uint32_t v = value < 0 ? 0 : (uint32_t)value;
  return HARP_MIN(HARP_MAX(v, low), high);
}

/* --- Integers --- */

static void syn_changed(struct harp_socket *s)
{
  if (s->listener) {
    harp_flow_set_listener_syn(s->listener, &s->syn);
  }
}

/* The SYN fixes the window scale. The buffer size may change later. */
static void set_rcvbuf(struct harp_socket *s, uint32_t bytes)
{
  int least = s->table->config->window_scale;
  s->syn.rcvbuf = bytes;
  s->syn.rcv_wscale = (uint8_t)HARP_MAX(least, 0);
  while (least >= 0 && s->syn.rcv_wscale < 14 && bytes > 65535u << s->syn.rcv_wscale) {
    s->syn.rcv_wscale++;
  }
  if (s->tcp) {
    harp_flow_set_rcvbuf(s->tcp, bytes);
  }
  syn_changed(s);
}

static int set_socket_level(struct harp_socket *s, int option, int value)
{
  switch (option) {
  case SO_KEEPALIVE:
    s->keepalive = value != 0;
    socket_apply_keepalive(s);
    return 0;
  case SO_SNDBUF:
    s->sndbuf = clamp(value, SNDBUF_MIN, BUFFER_MAX);
    socket_room_changed(s);
    return 0;
  case SO_RCVBUF: set_rcvbuf(s, clamp(value, RCVBUF_MIN, BUFFER_MAX)); return 0;
  case SO_REUSEADDR: /* TIME-WAIT never blocks bind here */ return 0;
  default: return -ENOPROTOOPT;
  }
}

static int set_mss(struct harp_socket *s, int value)
{
  if (value < TCP_MSS_FLOOR || value > MSS_MAX) {
    return -EINVAL;
  }
  s->syn.mss = (uint32_t)value;
  if (s->tcp) {
    harp_flow_set_mss(s->tcp, s->syn.mss);
  }
  syn_changed(s);
  return 0;
}

static int set_keepalive_time(struct harp_socket *s, uint32_t *field, int value)
{
  if (value < 1 || value > KEEP_TIME_MAX) {
    return -EINVAL;
  }
  *field = (uint32_t)value;
  if (s->keepalive) {
    socket_apply_keepalive(s);
  }
  return 0;
}

static void push_out(struct harp_socket *s)
{
  if (s->tcp) {
    harp_flow_ready(s->tcp);
    harp_stack_flush(s->table->stack);
  }
}

static int set_tcp_level(struct harp_socket *s, int option, int value)
{
  switch (option) {
  case TCP_NODELAY:
    s->nodelay = value != 0;
    if (s->tcp) {
      harp_flow_set_nodelay(s->tcp, s->nodelay);
    }
    push_out(s);
    return 0;
  case TCP_CORK:
    s->cork = value != 0;
    if (s->tcp) {
      harp_flow_set_cork(s->tcp, s->cork);
    }
    push_out(s);
    return 0;
  case TCP_MAXSEG: return set_mss(s, value);
  case TCP_USER_TIMEOUT:
    if (value < 0) {
      return -EINVAL;
    }
    s->user_timeout_ms = (uint32_t)value;
    if (s->tcp) {
      harp_flow_set_timeout(s->tcp, s->user_timeout_ms);
    }
    return 0;
  case TCP_KEEPIDLE: return set_keepalive_time(s, &s->keep_idle_s, value);
  case TCP_KEEPINTVL: return set_keepalive_time(s, &s->keep_interval_s, value);
  case TCP_KEEPCNT:
    return value > KEEP_COUNT_MAX ? -EINVAL : set_keepalive_time(s, &s->keep_count, value);
  default: return -ENOPROTOOPT;
  }
}

/* The two lowest bits are ECN's (RFC 3168); the user cannot set them. */
static int set_tos(struct harp_socket *s, const void *value, socklen_t length)
{
  int word;
  if (length < 1) {
    return -EINVAL;
  }
  if (length < sizeof word) {
    s->syn.tos = *(const uint8_t *)value & 0xfc; /* one byte is allowed too (ip(7)) */
  } else {
    memcpy(&word, value, sizeof word);
    s->syn.tos = (uint8_t)word & 0xfc;
  }
  if (s->tcp) {
    harp_flow_set_tos(s->tcp, s->syn.tos);
  }
  syn_changed(s);
  return 0;
}

static int set_congestion(struct harp_socket *s, const char *value, socklen_t length)
{
  char name[CONGESTION_NAME_SIZE] = "";
  memcpy(name, value, HARP_MIN((size_t)length, sizeof name - 1));
  const char *congestion = harp_congestion_name(name);
  if (!congestion) {
    return -ENOENT;
  }
  s->congestion = congestion;
  if (s->tcp) {
    harp_flow_set_congestion(s->tcp, congestion);
  }
  return 0;
}

int harp_tcp_setsockopt(struct harp_stack *stack, int number, int level, int option,
                        const void *value, socklen_t length)
{
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
  if (level == IPPROTO_IP && option == IP_TOS) {
    return set_tos(s, value, length);
  }
  if (level == IPPROTO_TCP && option == TCP_CONGESTION) {
    return set_congestion(s, value, length);
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

static uint32_t segment_size(const struct harp_socket *s)
{
  if (s->tcp && s->connected) {
    struct harp_flow_view view;
    harp_flow_view(s->tcp, &view);
    return view.mss;
  }
  return s->syn.mss ? s->syn.mss : TCP_DEFAULT_MSS;
}

static int get_integer(struct harp_socket *s, int level, int option, int *value)
{
  if (level == SOL_SOCKET) {
    switch (option) {
    case SO_ERROR: *value = -socket_take_error(s); return 0;
    case SO_KEEPALIVE: *value = s->keepalive; return 0;
    case SO_SNDBUF: *value = (int)s->sndbuf; return 0;
    case SO_RCVBUF: *value = (int)s->syn.rcvbuf; return 0;
    case SO_ACCEPTCONN: *value = s->listener != NULL; return 0;
    case SO_TYPE: *value = SOCK_STREAM; return 0;
    default: return -ENOPROTOOPT;
    }
  }
  switch (option) {
  case TCP_NODELAY: *value = s->nodelay; return 0;
  case TCP_CORK: *value = s->cork; return 0;
  case TCP_MAXSEG: *value = (int)segment_size(s); return 0;
  case TCP_USER_TIMEOUT: *value = (int)s->user_timeout_ms; return 0;
  case TCP_KEEPIDLE: *value = (int)s->keep_idle_s; return 0;
  case TCP_KEEPINTVL: *value = (int)s->keep_interval_s; return 0;
  case TCP_KEEPCNT: *value = (int)s->keep_count; return 0;
  default: return -ENOPROTOOPT;
  }
}

static void copy_out(const void *from, size_t size, void *value, socklen_t *length)
{
  *length = (socklen_t)HARP_MIN(size, (size_t)*length);
  memcpy(value, from, *length);
}

int harp_tcp_getsockopt(struct harp_stack *stack, int number, int level, int option, void *value,
                        socklen_t *length)
{
  struct harp_socket *s = socket_get(stack, number);
  if (!s) {
    return -EBADF;
  }
  if (level == SOL_SOCKET && option == SO_LINGER) {
    copy_out(&s->linger, sizeof s->linger, value, length);
    return 0;
  }
  if (level == IPPROTO_TCP && option == TCP_INFO) {
    struct harp_tcp_info info = {.tcpi_state = s->listener ? TCP_LISTEN : TCP_CLOSE};
    if (s->tcp) {
      harp_flow_info(s->tcp, &info);
    }
    copy_out(&info, sizeof info, value, length);
    return 0;
  }
  if (level == IPPROTO_TCP && option == TCP_CONGESTION) {
    copy_out(s->congestion, strlen(s->congestion) + 1, value, length);
    return 0;
  }
  if (level == IPPROTO_IP && option == IP_TOS) {
    int tos = s->syn.tos;
    copy_out(&tos, sizeof tos, value, length);
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
