/* SPDX-License-Identifier: Apache-2.0 */
/* What may be sent now, and sending it. */
#include "harp/stack/ip/checksum.h"
#include "harp/stack/stack_state.h"

enum {
  MAX_IOV = 50,             /* one for the headers, the rest for payload */
  RESETS_PER_SECOND = 1000, /* to unauthenticated peers */
  LEAST_WINDOW_UNITS = 16,  /* that a receive buffer should hold (RFC 7323, 2.3 leaves it to us) */
};

/* The window field for a segment that goes out now; moves the advertised edge. */
static uint16_t window_field(struct harp_tcp *tcp, bool syn)
{
  if (!tcp_synchronized(tcp) && tcp->state != TCP_SYN_RECV) {
    return (uint16_t)HARP_MIN(tcp->rcvbuf, 65535u);
  }
  if (syn) { /* a SYN's window is never scaled (RFC 7323, 2.2) */
    uint32_t window = HARP_MIN(tcp->rcvbuf, 65535u);
    tcp->rcv_right = seq_max(tcp->rcv_right, tcp->rcv_nxt + window);
    return (uint16_t)window;
  }
  uint32_t window = tcp_rcvq_window(tcp);
  uint32_t field = HARP_MIN(window >> tcp->rcv_wscale, 65535u);
  tcp->rcv_right = seq_max(tcp->rcv_right, tcp->rcv_nxt + (field << tcp->rcv_wscale));
  return (uint16_t)field;
}

/*
 * A segment being built: headers first, then the gather list. The next of a
 * series, equal in length, needs only another number and other flags.
 */
struct outgoing {
  struct harp_tx_frame frame;
  uint8_t *tcp;        /* the TCP header, in headers */
  uint32_t tcp_length; /* its bytes */
  uint32_t payload;    /* bytes that the headers speak of */
  uint32_t pseudo;     /* the pseudo-header's sum, folded, as it lies in memory */
  uint8_t headers[MAX_HEADERS];
  struct iovec iov[MAX_IOV];
};

/* What does not change within a series. */
struct header_fields {
  uint32_t source, destination; /* network order */
  uint16_t source_port, destination_port;
  uint32_t ack;
  uint16_t window;
  uint8_t tos;
  const uint8_t *options;
  uint32_t options_length;
};

static void write_headers(struct harp_stack *stack, struct outgoing *out,
                          const struct header_fields *fields, uint32_t payload)
{
  out->payload = payload;
  out->tcp_length = TCP_HEADER + fields->options_length;
  uint32_t ip = ip_write_headers(stack, out->headers, fields->source, fields->destination,
                                 IP_PROTOCOL_TCP, fields->tos, out->tcp_length + payload);
  uint8_t *header = out->tcp = out->headers + ip;
  store_be16(header + TCP_SOURCE, fields->source_port);
  store_be16(header + TCP_DEST, fields->destination_port);
  store_be32(header + TCP_ACKNOWLEDGEMENT, fields->ack);
  header[TCP_OFFSET] = (uint8_t)(out->tcp_length / 4 << 4);
  store_be16(header + TCP_WINDOW_FIELD, fields->window);
  store_be16(header + TCP_URGENT_POINTER, 0);
  if (fields->options_length) {
    memcpy(header + TCP_HEADER, fields->options, fields->options_length);
  }
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, fields->source, fields->destination, IP_PROTOCOL_TCP,
                      payload + out->tcp_length);
  out->pseudo = harp_sum_fold(&sum);
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

/* Sends what write_headers has begun; pieces: entries of the gather list behind the headers. */
static int send_written(struct harp_stack *stack, struct harp_neighbour *neighbour,
                        struct outgoing *out, int pieces, uint32_t seq, uint8_t flags)
{
  uint8_t *header = out->tcp;
  uint16_t checksum = (uint16_t)out->pseudo;
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
  return tcp->neighbour ? tcp->neighbour : neighbour_attach(tcp);
}

/* What every segment of an open connection carries; remembers that the peer
 * is now told of rcv_nxt. */
static void acknowledged(struct harp_tcp *tcp)
{
  tcp->last_ack_sent = tcp->rcv_nxt;
  tcp->ack_now = false;
  tcp_timer_set(tcp, TIMER_DELAYED_ACK, TIMER_OFF);
}

/* What the next segments of a connection have in common. */
static struct header_fields fields_of(struct harp_tcp *tcp, bool ack, bool syn,
                                      const uint8_t *options, uint32_t options_length)
{
  return (struct header_fields){
      .source = tcp->local_address,
      .destination = tcp->remote_address,
      .source_port = tcp->local_port,
      .destination_port = tcp->remote_port,
      .ack = ack ? tcp->rcv_nxt : 0,
      .window = window_field(tcp, syn),
      .tos = tcp->tos,
      .options = options,
      .options_length = options_length,
  };
}

/* A segment without payload. */
static int send_bare(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, const uint8_t *options,
                     uint32_t options_length)
{
  struct harp_neighbour *neighbour = neighbour_of(tcp);
  if (!neighbour) {
    return -ENETUNREACH;
  }
  struct outgoing out;
  struct header_fields fields = fields_of(tcp, flags & FLAG_ACK, flags & FLAG_SYN, options,
                                          options_length);
  write_headers(tcp->stack, &out, &fields, 0);
  int result = send_written(tcp->stack, neighbour, &out, 0, seq, flags);
  /* Not by a probe: below its window a peer takes no acknowledgement, and waits for one. */
  if (result == 0 && (flags & FLAG_ACK) && seq_ge(seq, tcp->snd_una)) {
    acknowledged(tcp);
  }
  return result;
}

static int send_plain(struct harp_tcp *tcp, uint32_t seq, uint8_t flags, bool with_sack)
{
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  uint32_t length = tcp_options_write(tcp, options, with_sack);
  return send_bare(tcp, seq, flags, options, length);
}

void tcp_send_ack(struct harp_tcp *tcp)
{
  /* Beyond the peer's window it accepts nothing and answers (RFC 9293, 3.10.7.4): behind a
   * probe of a closed window, snd_nxt would start an endless exchange of such answers. So would
   * a number below what it has received: a window that was rounded down since is no measure. */
  uint32_t seq = seq_min(tcp->snd_nxt, tcp->snd_edge + tcp->fin_sent);
  if (send_plain(tcp, seq, FLAG_ACK, true) == 0) {
    COUNT(tcp->stack, tcp_acks_out);
  } else {
    tcp_mark_dirty(tcp); /* the port was full: after the next burst */
  }
}

bool tcp_send_probe(struct harp_tcp *tcp)
{
  bool sent = send_plain(tcp, tcp->snd_una - 1, FLAG_ACK, false) != -EAGAIN;
  COUNT_N(tcp->stack, tcp_keepalives, sent);
  return sent;
}

void tcp_commit_offer(struct harp_tcp *tcp)
{
  uint32_t mss = tcp->stack->config.mtu - IP_HEADER - TCP_HEADER;
  tcp->advertised_mss = (uint16_t)(tcp->user_mss ? HARP_MIN(mss, tcp->user_mss) : mss);
  /* The window's unit must be small beside the buffer, or little room can't be told. */
  while (tcp->rcv_wscale > 0 && tcp->rcvbuf >> tcp->rcv_wscale < LEAST_WINDOW_UNITS) {
    tcp->rcv_wscale--;
  }
}

void tcp_send_syn_once(struct harp_tcp *tcp)
{
  bool with_ack = tcp->state == TCP_SYN_RECV;
  if (tcp->syn_transmits == 0) {
    tcp_commit_offer(tcp);
  }
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  uint32_t length = tcp_options_syn(tcp, options, with_ack);
  if (tcp->syn_transmits < 255) {
    tcp->syn_transmits++;
  }
  send_bare(tcp, tcp->iss, with_ack ? FLAG_SYN | FLAG_ACK : FLAG_SYN, options, length);
}

void tcp_send_syn(struct harp_tcp *tcp)
{
  tcp_send_syn_once(tcp);
  tcp_arm_rto(tcp);
}

void tcp_send_reset(struct harp_tcp *tcp)
{
  if (tcp_synchronized(tcp) || tcp->state == TCP_SYN_RECV) {
    COUNT(tcp->stack, tcp_resets_out);
    send_plain(tcp, tcp->snd_nxt, FLAG_RST | FLAG_ACK, false);
  }
}

bool tcp_may_reset(struct harp_stack *stack)
{
  bool may = limit_allows(&stack->reset_limit, stack->now, RESETS_PER_SECOND);
  COUNT_N(stack, tcp_resets_limited, !may);
  return may;
}

void tcp_reply_reset(struct harp_stack *stack, const struct harp_segment *segment)
{
  if (!tcp_may_reset(stack)) {
    return;
  }
  struct harp_neighbour *neighbour = neighbour_route(stack, ip_next_hop(stack, segment->source));
  if (!neighbour) {
    return;
  }
  struct header_fields fields = {
      .source = segment->destination,
      .destination = segment->source,
      .source_port = segment->destination_port,
      .destination_port = segment->source_port,
  };
  uint32_t seq = 0;
  uint8_t flags = FLAG_RST;
  if (segment->flags & FLAG_ACK) {
    seq = segment->ack;
  } else {
    fields.ack = segment->seq + segment->length + !!(segment->flags & FLAG_SYN) +
                 !!(segment->flags & FLAG_FIN);
    flags |= FLAG_ACK;
  }
  COUNT(stack, tcp_resets_out);
  struct outgoing out;
  write_headers(stack, &out, &fields, 0);
  send_written(stack, neighbour, &out, 0, seq, flags);
}

/*
 * Payload [seq, seq + length), as one large segment where the port can cut it,
 * else segment by segment. fin: the last one carries our FIN. Returns how many
 * payload bytes went out; short: the port is full.
 */
static uint32_t send_payload(struct harp_tcp *tcp, const struct harp_reference *reference,
                             uint32_t seq, uint32_t length, bool fin, bool *fin_sent)
{
  struct harp_stack *stack = tcp->stack;
  struct harp_neighbour *neighbour = neighbour_of(tcp);
  *fin_sent = false;
  if (!neighbour) {
    return 0;
  }
  uint8_t options[TCP_MAX_HEADER - TCP_HEADER];
  uint32_t options_length = tcp_options_write(tcp, options, false);
  struct header_fields fields = fields_of(tcp, true, false, options, options_length);
  uint32_t most = stack->io.offloads & HARP_OFFLOAD_TSO ? length : tcp->mss;
  uint32_t sent = 0;
  struct outgoing out;
  bool written = false, told = false, last;
  do {
    uint32_t covered = 0;
    int pieces = tcp_sndq_gather(reference, seq + sent, HARP_MIN(length - sent, most), out.iov + 1,
                                 MAX_IOV - 1, &covered);
    last = sent + covered == length;
    if (!written || covered != out.payload) {
      write_headers(stack, &out, &fields, covered);
      out.frame.segment_size = covered > tcp->mss ? (uint16_t)tcp->mss : 0;
      written = true;
    }
    uint8_t flags = FLAG_ACK | (last && length ? FLAG_PSH : 0) | (last && fin ? FLAG_FIN : 0);
    int result = send_written(stack, neighbour, &out, pieces, seq + sent, flags);
    if (result == -EAGAIN) {
      break;
    }
    told |= result == 0;
    sent += covered;
    *fin_sent = last && fin;
    if (!last) {
      reference = tcp_sndq_seek((struct harp_reference *)(uintptr_t)reference, seq + sent);
    }
  } while (!last);
  if (told) {
    acknowledged(tcp);
  }
  tcp->last_send = stack->now;
  return sent;
}

bool tcp_retransmit(struct harp_tcp *tcp, struct harp_record *record, uint32_t limit)
{
  struct harp_stack *stack = tcp->stack;
  uint32_t length = record->end - record->seq;
  limit = HARP_MIN(limit, stack->max_payload);
  if (length > limit && length - record->fin > limit) {
    if (!tcp_record_split(tcp, record, record->seq + limit)) {
      return false;
    }
    length = limit;
  }
  bool fin_sent;
  uint32_t payload = length - record->fin;
  uint32_t sent = send_payload(tcp, record->reference, record->seq, payload, record->fin,
                               &fin_sent);
  bool full = sent < payload || (record->fin && !fin_sent);
  if (full && (sent == 0 || !tcp_record_split(tcp, record, record->seq + sent))) {
    return false;
  }
  if (full) {
    /* What did go out is in flight again, or the next attempt would begin with it, and none
     * get farther; the rest goes on being lost. */
    length = payload = sent;
  }
  COUNT(stack, tcp_retransmits);
  COUNT_N(stack, tcp_retransmit_bytes, payload);
  tcp->retransmits++;
  tcp->bytes_retransmitted += payload;
  stack_event(tcp, HARP_EVENT_RETRANSMIT, payload, record->seq - tcp->iss - 1);
  tcp_record_unlink(tcp, record);
  record->retransmitted = true;
  if (record->transmits < UINT16_MAX) {
    record->transmits++;
  }
  tcp_record_sent(tcp, record);
  tcp->retrans_out += length;
  if (tcp->undo_retransmits == 0) {
    tcp->undo_stamp = tcp_timestamp(tcp);
  }
  tcp->undo_retransmits += length;
  tcp->prr_out += length;
  if (record == tcp->records) {
    tcp_arm_rto(tcp); /* unless the first one was only late, its answer is what snd_una waits for */
  }
  return !full;
}

/* Sends again what is lost, as far as the congestion window goes. */
static bool output_lost(struct harp_tcp *tcp)
{
  while (tcp->lost_first) {
    uint32_t flight = tcp_in_flight(tcp);
    uint32_t room = tcp->cwnd > flight ? tcp->cwnd - flight : 0;
    uint32_t length = tcp->lost_first->end - tcp->lost_first->seq;
    if (room < HARP_MIN(tcp->mss, length) && flight > 0) {
      tcp->cwnd_limited = true;
      return true;
    }
    room = HARP_MAX(room - room % tcp->mss, tcp->mss);
    if (!tcp_retransmit(tcp, tcp->lost_first, room)) {
      return false;
    }
  }
  return true;
}

static bool may_send_data(const struct harp_tcp *tcp)
{
  return tcp->state == TCP_ESTABLISHED || tcp->state == TCP_CLOSE_WAIT ||
         tcp->state == TCP_FIN_WAIT1 || tcp->state == TCP_CLOSING || tcp->state == TCP_LAST_ACK;
}

/* RFC 3042: for each of the first duplicates a segment has left. With SACK the flight says so. */
static uint32_t limited_transmit(const struct harp_tcp *tcp)
{
  bool counts = !tcp->sack && tcp->recovery == RECOVERY_NONE;
  return counts ? HARP_MIN(tcp->duplicates, TCP_DUPTHRESH - 1) * tcp->mss : 0;
}

/* Bytes of new data that both windows have room for. */
static uint32_t send_room(struct harp_tcp *tcp)
{
  uint32_t flight = tcp_in_flight(tcp);
  uint32_t cwnd = tcp->cwnd + limited_transmit(tcp);
  uint32_t congestion = cwnd > flight ? cwnd - flight : 0;
  int32_t peer = seq_diff(tcp->snd_una + tcp->snd_wnd, tcp->snd_nxt);
  uint32_t flow = peer > 0 ? (uint32_t)peer : 0;
  tcp->window_limited = flow < tcp->mss && flow <= congestion;
  /* Also when more waits than goes, though nothing goes yet for the sake of larger segments. */
  tcp->cwnd_limited = congestion < flow &&
                      (congestion < tcp->mss || congestion < tcp->snd_end - tcp->snd_nxt);
  return HARP_MIN(congestion, flow);
}

/* What is worth waiting for, since large segments are cheaper: a quarter of a window, but no more
 * than the flow sends in a quarter of a millisecond. Of a queue that is nearly full, bursts get
 * nearly all the drops, and flows that send a segment at a time hardly any. */
static uint32_t worthwhile_burst(const struct harp_tcp *tcp)
{
  uint64_t burst = HARP_MIN(tcp->cwnd, tcp->snd_wnd) / 4;
  if (tcp->srtt > NS_PER_MS) {
    burst = burst * NS_PER_MS / tcp->srtt;
  }
  return (uint32_t)HARP_MIN(burst, tcp->stack->max_payload);
}

/* Whether a short segment, all that is unsent, waits to be filled: under TCP_CORK, or, as in Linux
 * by Minshall's modification of Nagle's algorithm (RFC 9293, 3.7.4), behind an earlier short one.
 * TCP_NODELAY lets go what is there when it is set, also under TCP_CORK. */
static bool tail_waits(const struct harp_tcp *tcp)
{
  bool pushed = seq_lt(tcp->snd_nxt, tcp->push_end) && seq_le(tcp->push_end, tcp->snd_end);
  if (tcp->fin_queued || pushed) {
    return false;
  }
  bool short_in_flight = seq_gt(tcp->short_end, tcp->snd_una) &&
                         seq_le(tcp->short_end, tcp->snd_nxt);
  return tcp->cork || (!tcp->nodelay && short_in_flight);
}

/*
 * How much of unsent to send now: whole segments if there is more than fits;
 * a short one only when it is all there is and need not wait, or when the
 * peer's window never was larger.
 */
static uint32_t send_length(const struct harp_tcp *tcp, uint32_t unsent, uint32_t room)
{
  uint32_t length = HARP_MIN(HARP_MIN(unsent, room), tcp->stack->max_payload);
  bool idle = tcp->snd_nxt == tcp->snd_una;
  if (length == unsent) {
    uint32_t tail = length % tcp->mss;
    return tail && tail_waits(tcp) ? length - tail : length;
  }
  if (length >= tcp->mss) {
    /* More waits: let the next acknowledgement open the window further, unless nothing would
     * bring one. */
    uint32_t worth = HARP_MIN(unsent, worthwhile_burst(tcp));
    if (length < worth && !idle && !limited_transmit(tcp)) {
      return 0;
    }
    return length - length % tcp->mss;
  }
  return length && length >= tcp->max_snd_wnd / 2 ? length : 0;
}

/* New data, and our FIN if fin, whatever the windows say. Returns how many bytes of payload went
 * out, and are in a record: fewer than length if the port is full. *fin_sent: the FIN did. */
static uint32_t send_new(struct harp_tcp *tcp, uint32_t length, bool fin, bool *fin_sent)
{
  *fin_sent = false;
  if (tcp->stack->records.available == 0) {
    return 0;
  }
  struct harp_reference *reference = tcp_sndq_seek(tcp->send_cursor, tcp->snd_nxt);
  uint32_t sent = send_payload(tcp, reference, tcp->snd_nxt, length, fin, fin_sent);
  uint32_t span = sent + *fin_sent;
  if (span) {
    tcp_record_append(tcp, tcp->snd_nxt, tcp->snd_nxt + span, reference, *fin_sent);
    tcp->snd_nxt += span;
    if (sent % tcp->mss) {
      tcp->short_end = tcp->snd_nxt;
    }
    tcp->send_cursor = tcp_sndq_seek(reference, tcp->snd_nxt);
  }
  return sent;
}

/* One call's worth of new data. false: no more can go now. */
static bool output_new(struct harp_tcp *tcp)
{
  uint32_t room = send_room(tcp);
  bool idle = tcp->snd_nxt == tcp->snd_una;
  uint32_t waits = tcp->snd_end - tcp->snd_nxt;
  /* Nagle holds a short tail back until it is full or alone: it may be filled. */
  bool short_tail = waits < tcp->mss && !tcp->nodelay;
  if ((waits == 0 || short_tail) && (room >= tcp->mss || idle) && tcp->ops->pull &&
      !tcp->fin_queued) {
    /* Also for a closed window: only what waits makes this side ask when it opens again. */
    tcp->ops->pull(tcp->user, tcp, HARP_MAX(room, 1));
    if (tcp->state == TCP_CLOSE) {
      return false;
    }
  }
  uint32_t unsent = tcp->snd_end - tcp->snd_nxt;
  uint32_t length = send_length(tcp, unsent, room);
  bool fin = tcp->fin_queued && length == unsent;
  if (length == 0 && !(fin && unsent == 0)) {
    return false;
  }
  struct harp_stack *stack = tcp->stack;
  bool fin_sent;
  uint32_t sent = send_new(tcp, length, fin, &fin_sent);
  uint32_t span = sent + fin_sent;
  if (span == 0) {
    tcp_mark_dirty(tcp);
    return false;
  }
  COUNT_N(stack, tcp_payload_out, sent);
  if (tcp->recovery == RECOVERY_FAST) {
    tcp->prr_out += sent;
  }
  if (fin_sent) {
    tcp->fin_sent = true;
    tcp->fin_queued = false;
  }
  if (idle) {
    tcp->last_progress = stack->now;
    tcp->busy_since = HARP_MAX(stack->now, 1);
    tcp_arm_rto(tcp);
    if (tcp->user_timeout_ms) {
      tcp_timer_set(tcp, TIMER_USER, stack->now + tcp->user_timeout_ms * NS_PER_MS);
    }
  }
  if (span < length + fin) {
    tcp_mark_dirty(tcp);
    return false;
  }
  return !fin_sent;
}

/* RFC 5681, 4.1: an idle sender has lost its clock; acknowledging what others send does not keep
 * it. Between HARP hosts the path is known and training stops and goes, so the window is kept. */
static void restart_after_idle(struct harp_tcp *tcp)
{
  if (!tcp->harp_peer && tcp->snd_nxt == tcp->snd_una &&
      tcp->stack->now - tcp->last_send > tcp->rto) {
    tcp->cwnd = HARP_MIN(tcp->cwnd, tcp->stack->config.initial_window * tcp->mss);
  }
}

void tcp_output(struct harp_tcp *tcp)
{
  if (!may_send_data(tcp)) {
    return;
  }
  restart_after_idle(tcp);
  uint32_t before = tcp->snd_nxt;
  if (!output_lost(tcp)) {
    tcp_mark_dirty(tcp);
    return;
  }
  while (!tcp->lost_first && !tcp->fin_sent && output_new(tcp)) {
  }
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  if (tcp->snd_nxt != before) {
    tcp_arm_tail_probe(tcp);
  }
  if (!tcp->records && tcp->snd_nxt != tcp->snd_end && !tcp->fin_sent &&
      tcp->timers[TIMER_RETRANSMIT] == TIMER_OFF) {
    tcp_arm_rto(tcp); /* as the persist timer: the window is too small */
    if (tcp->user_timeout_ms && tcp->timers[TIMER_USER] == TIMER_OFF) {
      tcp->last_progress = tcp->stack->now;
      tcp_timer_set(tcp, TIMER_USER, tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS);
    }
  }
}

bool tcp_send_new_probe(struct harp_tcp *tcp)
{
  int32_t room = seq_diff(tcp->snd_una + tcp->snd_wnd, tcp->snd_nxt);
  if (room < (int32_t)tcp->mss || tcp->fin_sent || !may_send_data(tcp)) {
    return false;
  }
  if (tcp->snd_nxt == tcp->snd_end && tcp->ops->pull && !tcp->fin_queued) {
    tcp->ops->pull(tcp->user, tcp, tcp->mss);
  }
  uint32_t length = HARP_MIN(tcp->snd_end - tcp->snd_nxt, tcp->mss);
  if (tcp->state == TCP_CLOSE || length == 0) {
    return false;
  }
  bool fin_sent;
  uint32_t sent = send_new(tcp, length, false, &fin_sent);
  COUNT_N(tcp->stack, tcp_payload_out, sent);
  return sent > 0;
}

bool tcp_send_window_probe(struct harp_tcp *tcp)
{
  bool fin_sent, sent = false;
  struct harp_record *record = tcp->records;
  if (record) {
    uint32_t payload = record->end - record->seq - record->fin;
    record->transmits = 2; /* no sample of the round trip from it (Karn) */
    /* A FIN alone needs no room: the peer takes it at once. */
    sent = send_payload(tcp, record->reference, record->seq, HARP_MIN(payload, tcp->mss),
                        payload == 0, &fin_sent) ||
           fin_sent;
  } else {
    uint32_t length = HARP_MAX(HARP_MIN(tcp->snd_wnd, tcp->snd_end - tcp->snd_nxt), 1);
    sent = send_new(tcp, HARP_MIN(length, tcp->mss), false, &fin_sent) > 0;
  }
  COUNT_N(tcp->stack, tcp_window_probes, sent);
  return sent;
}
