/* SPDX-License-Identifier: Apache-2.0 */
/* Transmission of a segment: headers, options, checksum, gather list. */
#include "harp/stack/tcp/tcp_transmit.h"

#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/ip_output.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_rcvq.h"
#include "harp/stack/tcp/tcp_sndq.h"

enum { MAX_IOV = 50 }; /* one for the headers, the rest for payload */

/*
 * A segment under construction: headers first, then the gather list. The next segment of equal
 * length changes only the sequence number and the flags.
 */
struct outgoing {
  struct harp_tx_frame frame;
  uint8_t *tcp;        /* the TCP header, in headers */
  uint32_t tcp_length; /* length of the TCP header, bytes */
  uint32_t payload;    /* payload bytes in the headers' length fields */
  uint16_t pseudo;     /* folded sum of the pseudo-header, in memory order */
  uint8_t headers[MAX_HEADERS];
  struct iovec iov[MAX_IOV];
};

/* Returns the window field of a segment that is sent now, and updates the advertised right edge. */
static uint16_t window_field(struct harp_tcp *tcp, bool syn)
{
  if (!tcp_synchronized(tcp) && tcp->state != TCP_SYN_RECV) {
    return (uint16_t)HARP_MIN(tcp->rcv.buf, 65535u);
  }
  if (syn) { /* a SYN's window is never scaled (RFC 7323, 2.2) */
    uint32_t window = HARP_MIN(tcp->rcv.buf, 65535u);
    tcp->rcv.right = seq_max(tcp->rcv.right, tcp->rcv.nxt + window);
    return (uint16_t)window;
  }
  uint32_t window = tcp_rcvq_window(tcp);
  uint32_t field = HARP_MIN(window >> tcp->rcv.wscale, 65535u);
  tcp->rcv.right = seq_max(tcp->rcv.right, tcp->rcv.nxt + (field << tcp->rcv.wscale));
  return (uint16_t)field;
}

/* The header fields that consecutive segments share. */
struct fields {
  uint32_t ack;
  uint16_t window;
  const uint8_t *options;
  uint32_t options_length;
};

static void write_template(struct harp_stack *stack, struct tcp_header_template *template,
                           const struct tcp_addresses *addresses)
{
  uint32_t ip = ip_write_headers(stack, template->bytes, addresses->source, addresses->destination,
                                 IP_PROTOCOL_TCP, addresses->tos, 0);
  uint8_t *header = template->bytes + ip;
  memset(header, 0, TCP_HEADER);
  store_be16(header + TCP_SOURCE, addresses->source_port);
  store_be16(header + TCP_DEST, addresses->destination_port);
  template->length = (uint8_t)(ip + TCP_HEADER);
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, addresses->source, addresses->destination, IP_PROTOCOL_TCP, 0);
  template->pseudo_sum = harp_sum_fold(&sum);
}

static inline void write_headers(struct harp_stack *stack, struct outgoing *out,
                                 const struct tcp_header_template *template,
                                 const struct fields *fields, uint32_t payload)
{
  out->payload = payload;
  out->tcp_length = TCP_HEADER + fields->options_length;
  uint32_t ip = template->length - TCP_HEADER;
  memcpy(out->headers, template->bytes, sizeof template->bytes);
  ip_set_payload_length(out->headers + ip - IP_HEADER, out->tcp_length + payload);
  uint8_t *header = out->tcp = out->headers + ip;
  store_be32(header + TCP_ACKNOWLEDGEMENT, fields->ack);
  header[TCP_OFFSET] = (uint8_t)(out->tcp_length / 4 << 4);
  store_be16(header + TCP_WINDOW_FIELD, fields->window);
  if (fields->options_length == TCP_TIMESTAMP_OPTION) {
    memcpy(header + TCP_HEADER, fields->options, TCP_TIMESTAMP_OPTION); /* the usual case, inline */
  } else if (fields->options_length) {
    memcpy(header + TCP_HEADER, fields->options, fields->options_length);
  }
  out->pseudo = harp_sum_of_two(template->pseudo_sum,
                                __builtin_bswap16((uint16_t)(payload + out->tcp_length)));
  out->iov[0].iov_base = out->headers;
  out->iov[0].iov_len = ip + out->tcp_length;
  out->frame = (struct harp_tx_frame){
      .iov = out->iov,
      .header_length = (uint16_t)(ip + out->tcp_length),
      .length = ip + out->tcp_length + payload,
  };
  if (stack->io.offloads & HARP_OFFLOAD_TX_CHECKSUM) {
    out->frame.checksum_needed = 1;
    out->frame.checksum_start = (uint16_t)ip;
    out->frame.checksum_offset = TCP_CHECKSUM;
  }
}

/* Sends the segment after write_headers has written its headers. pieces: entries of the gather list
 * after the headers. */
static inline int send_written(struct harp_stack *stack, struct harp_neighbour *neighbour,
                               struct outgoing *out, int pieces, uint32_t seq, uint8_t flags)
{
  uint8_t *header = out->tcp;
  uint16_t checksum = out->pseudo;
  store_be32(header + TCP_SEQUENCE, seq);
  header[TCP_FLAG_BYTE] = flags;
  out->frame.iov_count = (uint16_t)(1 + pieces);
  if (!out->frame.checksum_needed) {
    struct harp_sum sum = {.value = checksum};
    memset(header + TCP_CHECKSUM, 0, 2);
    harp_sum_add(&sum, header, out->tcp_length);
    for (int i = 1; i <= pieces; i++) {
      harp_sum_add(&sum, out->iov[i].iov_base, out->iov[i].iov_len);
    }
    checksum = (uint16_t)~harp_sum_fold(&sum);
  }
  memcpy(header + TCP_CHECKSUM, &checksum, 2);
  int result = ip_transmit(stack, neighbour, &out->frame);
  if (result == 0) {
    COUNT(stack, tcp_segments_out);
  }
  return result;
}

static struct harp_neighbour *neighbour_of(struct harp_tcp *tcp)
{
  if (!tcp->neighbour) {
    tcp->neighbour = neighbour_attach(tcp->stack, tcp->next_hop, &tcp->neighbour_link);
  }
  return tcp->neighbour;
}

static const struct tcp_header_template *template_of(struct harp_tcp *tcp)
{
  if (tcp->headers.length == 0) {
    const struct tcp_addresses addresses = {
        .source = tcp->local_address,
        .destination = tcp->remote_address,
        .source_port = tcp->local_port,
        .destination_port = tcp->remote_port,
        .tos = tcp->tos,
    };
    write_template(tcp->stack, &tcp->headers, &addresses);
  }
  return &tcp->headers;
}

int tcp_transmit_bare(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, const uint8_t *options,
                      uint32_t options_length)
{
  struct harp_neighbour *neighbour = neighbour_of(tcp);
  if (!neighbour) {
    return -ENETUNREACH;
  }
  struct outgoing out;
  const struct fields fields = {
      .ack = flags & FLAG_ACK ? tcp->rcv.nxt : 0,
      .window = window_field(tcp, flags & FLAG_SYN),
      .options = options,
      .options_length = options_length,
  };
  write_headers(tcp->stack, &out, template_of(tcp), &fields, 0);
  int result = send_written(tcp->stack, neighbour, &out, 0, seq, flags);
  /* A keepalive probe does not count: a peer ignores the acknowledgement of a segment below its
   * window. */
  if (result == 0 && (flags & FLAG_ACK) && seq_ge(seq, tcp->snd.una)) {
    tcp_ack_sent(tcp);
  }
  return result;
}

uint32_t tcp_transmit_payload(struct harp_tcp *tcp, const struct harp_reference *reference,
                              uint32_t seq, uint32_t length, bool fin, bool *fin_sent)
{
  struct harp_stack *stack = tcp->stack;
  struct harp_neighbour *neighbour = neighbour_of(tcp);
  *fin_sent = false;
  if (!neighbour) {
    return 0;
  }
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  const struct fields fields = {
      .ack = tcp->rcv.nxt,
      .window = window_field(tcp, false),
      .options = options,
      .options_length = tcp_options_write(tcp, options, false),
  };
  uint32_t most = stack->io.offloads & HARP_OFFLOAD_TSO ? length : tcp->snd.mss;
  uint32_t sent = 0;
  struct outgoing out;
  bool written = false, ack_sent = false, last;
  do {
    uint32_t covered = 0;
    int pieces = tcp_sndq_gather(reference, seq + sent, HARP_MIN(length - sent, most), out.iov + 1,
                                 MAX_IOV - 1, &covered);
    last = sent + covered == length;
    if (!written || covered != out.payload) {
      write_headers(stack, &out, template_of(tcp), &fields, covered);
      out.frame.segment_size = covered > tcp->snd.mss ? (uint16_t)tcp->snd.mss : 0;
      written = true;
    }
    uint8_t flags = FLAG_ACK | (last && length ? FLAG_PSH : 0) | (last && fin ? FLAG_FIN : 0);
    int result = send_written(stack, neighbour, &out, pieces, seq + sent, flags);
    if (result == -EAGAIN) {
      break;
    }
    ack_sent |= result == 0;
    sent += covered;
    *fin_sent = last && fin;
    if (!last) {
      reference = tcp_sndq_seek((struct harp_reference *)(uintptr_t)reference, seq + sent);
    }
  } while (!last);
  if (ack_sent) {
    tcp_ack_sent(tcp);
  }
  tcp->last_send = stack->now;
  return sent;
}

void tcp_transmit_unconnected(struct harp_stack *stack, struct harp_neighbour *neighbour,
                              const struct tcp_addresses *addresses, uint32_t seq, uint32_t ack,
                              uint8_t flags)
{
  struct outgoing out;
  struct tcp_header_template template;
  const struct fields fields = {.ack = ack};
  write_template(stack, &template, addresses);
  write_headers(stack, &out, &template, &fields, 0);
  send_written(stack, neighbour, &out, 0, seq, flags);
}
