/* SPDX-License-Identifier: Apache-2.0 */
/* TCP options: MSS (RFC 9293), window scale and timestamps (7323), SACK (2018, 2883). */
#include "harp/stack/tcp/tcp_options.h"

#include "harp/headers.h"
#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_segment.h"

static void take_option(struct harp_segment *segment, uint8_t kind, const uint8_t *body,
                        uint32_t length)
{
  switch (kind) {
  case OPTION_MSS:
    if (length == 2) {
      segment->mss = load_be16(body);
    }
    break;
  case OPTION_WINDOW_SCALE:
    if (length == 1) {
      /* RFC 7323, 2.3: a shift above 14 means 14. */
      segment->window_scale = (int8_t)HARP_MIN(body[0], 14);
    }
    break;
  case OPTION_SACK_PERMITTED: segment->sack_permitted = length == 0; break;
  case OPTION_TIMESTAMP:
    if (length == 8) {
      segment->has_timestamp = true;
      segment->timestamp = load_be32(body);
      segment->echo = load_be32(body + 4);
    }
    break;
  case OPTION_SACK:
    for (uint32_t i = 0; length % 8 == 0 && i < length / 8 && i < TCP_MAX_SACKS; i++) {
      segment->sack[i].start = load_be32(body + 8 * i);
      segment->sack[i].end = load_be32(body + 8 * i + 4);
      segment->sack_count = (uint8_t)(i + 1);
    }
    break;
  default: /* unknown options are skipped (RFC 9293, MUST-6) */ break;
  }
}

bool tcp_options_parse(struct harp_segment *segment, const uint8_t *options, uint32_t length)
{
  /* The usual layout in an established connection: two NOPs and timestamps (RFC 7323, appendix A).
   */
  if (length == TCP_TIMESTAMP_OPTION && load_be32(options) == OPTION_TIMESTAMP_LAYOUT) {
    segment->has_timestamp = true;
    segment->timestamp = load_be32(options + 4);
    segment->echo = load_be32(options + 8);
    return true;
  }
  while (length > 0) {
    uint8_t kind = options[0];
    if (kind == OPTION_END) {
      return true;
    }
    if (kind == OPTION_NOP) {
      options++;
      length--;
      continue;
    }
    if (length < 2 || options[1] < 2 || options[1] > length) {
      return false;
    }
    uint32_t size = options[1];
    take_option(segment, kind, options + 2, size - 2);
    options += size;
    length -= size;
  }
  return true;
}

/* The offset hides the host's uptime. */
uint32_t tcp_timestamp_at(const struct harp_tcp *tcp, uint64_t time)
{
  return (uint32_t)(time / TIMESTAMP_TICK) + tcp->ts.offset;
}

uint32_t tcp_timestamp(const struct harp_tcp *tcp)
{
  return tcp_timestamp_at(tcp, tcp->stack->now);
}

uint64_t tcp_timestamp_age(const struct harp_tcp *tcp, uint32_t echo)
{
  int32_t ticks = seq_diff(tcp_timestamp(tcp), echo);
  return ticks < 0 ? 0 : (uint64_t)ticks * TIMESTAMP_TICK + tcp->stack->now % TIMESTAMP_TICK;
}

static uint8_t *write_timestamp(const struct harp_tcp *tcp, uint8_t *out, uint32_t echo)
{
  store_be32(out, OPTION_TIMESTAMP_LAYOUT);
  store_be32(out + 4, tcp_timestamp(tcp));
  store_be32(out + 8, echo);
  return out + TCP_TIMESTAMP_OPTION;
}

uint32_t tcp_options_syn(const struct harp_tcp *tcp, uint8_t *out, bool with_ack)
{
  const struct harp_stack_config *config = &tcp->stack->config;
  uint8_t *p = out;
  *p++ = OPTION_MSS;
  *p++ = 4;
  store_be16(p, tcp->advertised_mss);
  p += 2;
  if (with_ack ? tcp->sack : config->sack) {
    *p++ = OPTION_NOP;
    *p++ = OPTION_NOP;
    *p++ = OPTION_SACK_PERMITTED;
    *p++ = 2;
  }
  if (with_ack ? tcp->timestamps : config->timestamps) {
    p = write_timestamp(tcp, p, with_ack ? tcp->ts.recent : 0);
  }
  if (with_ack ? tcp->window_scaling : config->window_scale >= 0) {
    *p++ = OPTION_NOP;
    *p++ = OPTION_WINDOW_SCALE;
    *p++ = 3;
    *p++ = tcp->rcv.wscale;
  }
  return (uint32_t)(p - out);
}

uint32_t tcp_options_write(struct harp_tcp *tcp, uint8_t *out, bool with_sack)
{
  uint8_t *p = out;
  if (tcp->timestamps) {
    p = write_timestamp(tcp, p, tcp->ts.recent);
  }
  if (with_sack && tcp->sack && tcp_has_gaps(tcp)) {
    uint32_t blocks[TCP_MAX_SACKS][2];
    int max = tcp->timestamps ? 3 : 4; /* the most that fit in 40 bytes of options */
    int count = tcp_rcvq_sacks(tcp, blocks, max);
    if (count) {
      *p++ = OPTION_NOP;
      *p++ = OPTION_NOP;
      *p++ = OPTION_SACK;
      *p++ = (uint8_t)(2 + 8 * count);
    }
    for (int i = 0; i < count; i++) {
      store_be32(p, blocks[i][0]);
      store_be32(p + 4, blocks[i][1]);
      p += 8;
    }
  }
  return (uint32_t)(p - out);
}
