/* SPDX-License-Identifier: Apache-2.0 */
/* Output: decides which data may be sent, and sends it. */
#include "harp/stack/tcp/tcp_output.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_prr.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_transmit.h"
#include "harp/stack/tcp/tcp_undo.h"
#include "harp/stack/tcp/tcp_wait.h"

/* A connection with data in flight leaves 1/RECORD_RESERVE of the records to others. */
enum { RECORD_RESERVE = 16 };

/* Whether new data may take a transmit record. A connection with data in flight leaves some for the
 * others, and for the splits of lost records: its peer may never acknowledge. */
static inline bool has_record(const struct harp_tcp *tcp)
{
  const struct harp_pool *records = &tcp->stack->records;
  uint32_t keep = tcp->snd.nxt == tcp->snd.una ? 0 : records->total / RECORD_RESERVE;
  return records->available > keep;
}

/* Continues at the next flush if the port is full. If memory is missing, an acknowledgement or the
 * retransmission timer continues. */
static void continue_later(struct harp_tcp *tcp)
{
  if (tcp->stack->port_full) {
    tcp_mark_dirty(tcp);
  }
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
  uint32_t sent = tcp_transmit_payload(tcp, record->reference, record->seq, payload, record->fin,
                                       &fin_sent);
  bool full = sent < payload || (record->fin && !fin_sent);
  if (full && (sent == 0 || !tcp_record_split(tcp, record, record->seq + sent))) {
    return false;
  }
  if (full) {
    /* The part that was sent is in flight again. Else every attempt would begin with it and never
     * reach the rest. The rest stays lost. */
    length = payload = sent;
  }
  COUNT(stack, tcp_retransmits);
  COUNT_N(stack, tcp_retransmit_bytes, payload);
  tcp->retransmits++;
  tcp->bytes_retransmitted += payload;
  stack_event(tcp, HARP_EVENT_RETRANSMIT, payload, record->seq - tcp->snd.iss - 1);
  tcp_record_unlink(tcp, record);
  record->state = RECORD_RETRANSMITTED;
  if (record->transmits < UINT16_MAX) {
    record->transmits++;
  }
  tcp_record_sent(tcp, record);
  tcp->flight.retrans_out += length;
  tcp_undo_on_retransmit(tcp, length);
  tcp_prr_on_send(tcp, length);
  if (record == tcp->flight.first) {
    tcp_arm_rto(tcp); /* the ACK of this retransmission advances SND.UNA, so restart the RTO */
  }
  return !full;
}

/* Retransmits lost records within cwnd. false: the port is full, or no memory. */
static bool output_lost(struct harp_tcp *tcp)
{
  while (tcp->flight.lost_first) {
    uint32_t flight = tcp_in_flight(tcp);
    uint32_t room = tcp->cwnd > flight ? tcp->cwnd - flight : 0;
    uint32_t length = tcp->flight.lost_first->end - tcp->flight.lost_first->seq;
    if (room < HARP_MIN(tcp->snd.mss, length) && flight > 0) {
      tcp_cwnd_limits(tcp);
      return true;
    }
    room = HARP_MAX(room - room % tcp->snd.mss, tcp->snd.mss);
    if (!tcp_retransmit(tcp, tcp->flight.lost_first, room)) {
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

/* Limited transmit (RFC 3042): one segment has left the network for each of the first two duplicate
 * ACKs. tcp_in_flight accounts for it on a connection with SACK. */
static uint32_t limited_transmit(const struct harp_tcp *tcp)
{
  bool counts = !tcp->sack && tcp->recovery == RECOVERY_NONE;
  return counts ? HARP_MIN(tcp->duplicates, TCP_DUPTHRESH - 1) * tcp->snd.mss : 0;
}

/* Returns the bytes of new data that cwnd and the send window allow. */
static uint32_t send_room(struct harp_tcp *tcp)
{
  uint32_t flight = tcp_in_flight(tcp);
  uint32_t cwnd = tcp->cwnd + limited_transmit(tcp);
  uint32_t congestion = cwnd > flight ? cwnd - flight : 0;
  int32_t peer = seq_diff(tcp->snd.una + tcp->snd.wnd, tcp->snd.nxt);
  uint32_t flow = peer > 0 ? (uint32_t)peer : 0;
  tcp->snd.window_limited = flow < tcp->snd.mss && flow <= congestion;
  /* cwnd is also the limit while send_length delays data for a larger burst. */
  if (congestion < flow &&
      (congestion < tcp->snd.mss || congestion < tcp->snd.end - tcp->snd.nxt)) {
    tcp_cwnd_limits(tcp);
  } else {
    tcp_cwnd_does_not_limit(tcp);
  }
  return HARP_MIN(congestion, flow);
}

/* Returns the burst worth waiting for, bytes, because large segments cost less CPU time. It is a
 * quarter of a window, but at most the data of a quarter of a millisecond. Larger bursts suffer
 * most of the drops at a nearly full queue. */
static uint32_t worthwhile_burst(const struct harp_tcp *tcp)
{
  uint64_t burst = HARP_MIN(tcp->cwnd, tcp->snd.wnd) / 4;
  if (tcp->rtt.srtt > NS_PER_MS) {
    burst = burst * NS_PER_MS / tcp->rtt.srtt;
  }
  return (uint32_t)HARP_MIN(burst, tcp->stack->max_payload);
}

/* Whether a short segment at the end of the unsent data must wait for more data. TCP_CORK delays
 * it. So does an earlier short segment in flight: Minshall's variant of Nagle's algorithm (RFC
 * 9293, 3.7.4), as in Linux. TCP_NODELAY releases the data pushed before it was set, even under
 * TCP_CORK. */
static bool tail_waits(const struct harp_tcp *tcp)
{
  bool pushed = seq_lt(tcp->snd.nxt, tcp->snd.push_end) && seq_le(tcp->snd.push_end, tcp->snd.end);
  if (tcp->snd.fin_queued || pushed) {
    return false;
  }
  bool short_in_flight = seq_gt(tcp->snd.short_end, tcp->snd.una) &&
                         seq_le(tcp->snd.short_end, tcp->snd.nxt);
  return tcp->snd.cork || (!tcp->snd.nodelay && short_in_flight);
}

/*
 * Returns how many unsent bytes to send now: all of them, or full segments if not all of them fit.
 * A short segment is sent only at the end of the data, or if it fills half of the largest window
 * that the peer has offered.
 */
static uint32_t send_length(const struct harp_tcp *tcp, uint32_t unsent, uint32_t room)
{
  uint32_t length = HARP_MIN(HARP_MIN(unsent, room), tcp->stack->max_payload);
  bool idle = tcp->snd.nxt == tcp->snd.una;
  if (length == unsent) {
    uint32_t tail = length % tcp->snd.mss;
    return tail && tail_waits(tcp) ? length - tail : length;
  }
  if (length >= tcp->snd.mss) {
    /* More data is unsent. Wait for the next ACK to open the window further, unless nothing is in
     * flight that brings an ACK. */
    uint32_t worth = HARP_MIN(unsent, worthwhile_burst(tcp));
    if (length < worth && !idle && !limited_transmit(tcp)) {
      return 0;
    }
    return length - length % tcp->snd.mss;
  }
  return length && length >= tcp->snd.max_wnd / 2 ? length : 0;
}

/* Whether the owner can be asked for more data. */
static bool may_pull(const struct harp_tcp *tcp) { return tcp->ops->pull && !tcp->snd.fin_queued; }

/* Asks the owner for data. room: bytes that can be sent. false: the owner closed the connection. */
static bool pull(struct harp_tcp *tcp, uint32_t room)
{
  tcp->ops->pull(tcp->user, tcp, room);
  return tcp->state != TCP_CLOSE;
}

/* Data is in flight again after none was: the timers start. */
static inline void begin_flight(struct harp_tcp *tcp)
{
  uint64_t now = tcp->stack->now;
  tcp->last_progress = now;
  tcp_arm_rto(tcp);
  if (tcp->user_timeout_ms) {
    tcp_timer_set(tcp, TIMER_USER, now + tcp->user_timeout_ms * NS_PER_MS);
  }
}

/* What new data is sent for. */
enum purpose {
  FOR_TRANSFER,     /* also as a tail loss probe */
  FOR_WINDOW_PROBE, /* counts as a probe only; the persist timer runs already */
};

/* Sends new data, and our FIN if fin is set, regardless of the windows. All new data is sent here.
 * Returns the sequence space that was sent and recorded; less than length and the FIN if the port
 * is full or memory is missing. */
static inline uint32_t send_new(struct harp_tcp *tcp, uint32_t length, bool fin,
                                enum purpose purpose)
{
  if (!has_record(tcp)) {
    return 0;
  }
  bool idle = tcp->snd.nxt == tcp->snd.una;
  struct harp_reference *reference = tcp_sndq_seek(tcp->sndq.cursor, tcp->snd.nxt);
  bool fin_sent;
  uint32_t sent = tcp_transmit_payload(tcp, reference, tcp->snd.nxt, length, fin, &fin_sent);
  uint32_t span = sent + fin_sent;
  if (span == 0) {
    return 0;
  }
  stack_event(tcp, HARP_EVENT_SENT, sent, tcp->snd.nxt - tcp->snd.iss - 1);
  tcp_record_append(tcp, tcp->snd.nxt, tcp->snd.nxt + span, reference, fin_sent);
  tcp->snd.nxt += span;
  if (sent % tcp->snd.mss) {
    tcp->snd.short_end = tcp->snd.nxt;
  }
  tcp->sndq.cursor = tcp_sndq_seek(reference, tcp->snd.nxt);
  if (tcp->recovery == RECOVERY_FAST) {
    tcp_prr_on_send(tcp, sent);
  }
  if (fin_sent) {
    tcp->snd.fin_sent = true;
    tcp->snd.fin_queued = false;
    tcp->snd.edge += tcp->snd.end == tcp->snd.edge; /* the peer takes a FIN there, too */
  }
  if (purpose == FOR_TRANSFER) {
    COUNT_N(tcp->stack, tcp_payload_out, sent);
    if (idle) {
      begin_flight(tcp);
    }
  }
  return span;
}

enum output {
  OUTPUT_MORE,
  OUTPUT_DONE, /* nothing more can be sent now */
  OUTPUT_FULL, /* the port is full, or no memory */
};

/* Sends one burst of new data. */
static enum output output_new(struct harp_tcp *tcp)
{
  uint32_t room = send_room(tcp);
  bool idle = tcp->snd.nxt == tcp->snd.una;
  uint32_t queued = tcp->snd.end - tcp->snd.nxt;
  /* More data from pull may fill a short segment that Nagle's algorithm delays. */
  bool short_tail = queued < tcp->snd.mss && !tcp->snd.nodelay;
  /* Also for a closed window: only unsent data starts the window probes. */
  if ((queued == 0 || short_tail) && (room >= tcp->snd.mss || idle) && may_pull(tcp) &&
      !pull(tcp, HARP_MAX(room, 1))) {
    return OUTPUT_DONE;
  }
  uint32_t unsent = tcp->snd.end - tcp->snd.nxt;
  uint32_t length = send_length(tcp, unsent, room);
  bool fin = tcp->snd.fin_queued && length == unsent;
  if (length == 0 && !(fin && unsent == 0)) {
    return OUTPUT_DONE;
  }
  if (send_new(tcp, length, fin, FOR_TRANSFER) < length + fin) {
    continue_later(tcp);
    return OUTPUT_FULL;
  }
  return OUTPUT_MORE;
}

/* What the sender waits for if the port has room. */
static enum tcp_wait wait_of(const struct harp_tcp *tcp)
{
  if (tcp->snd.window_limited && tcp->snd.una != tcp->snd.end) {
    return TCP_WAIT_WINDOW;
  }
  return tcp->snd.una != tcp->snd.nxt ? TCP_WAIT_ACK : TCP_WAIT_NOTHING;
}

/* Whether there is nothing to send and nothing in flight, as on a flow that only receives. */
static bool nothing_to_send(const struct harp_tcp *tcp)
{
  return tcp->snd.una == tcp->snd.end && !tcp->snd.fin_queued && !tcp->snd.fin_sent &&
         !tcp->ops->pull;
}

void tcp_output(struct harp_tcp *tcp)
{
  if (!may_send_data(tcp) || nothing_to_send(tcp)) {
    return;
  }
  tcp_cwnd_restart_after_idle(tcp);
  uint32_t before = tcp->snd.nxt;
  if (!output_lost(tcp)) {
    continue_later(tcp);
    tcp_wait_for(tcp, TCP_WAIT_DEVICE);
    return;
  }
  enum output output = OUTPUT_MORE;
  while (output == OUTPUT_MORE && !tcp->flight.lost_first && !tcp->snd.fin_sent) {
    output = output_new(tcp);
  }
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  tcp_wait_for(tcp, output == OUTPUT_FULL ? TCP_WAIT_DEVICE : wait_of(tcp));
  if (tcp->snd.nxt != before) {
    tcp_arm_tail_probe(tcp);
  }
  if (!tcp->flight.first && (tcp->snd.nxt != tcp->snd.end || tcp->snd.fin_queued) &&
      !tcp->snd.fin_sent && tcp->timers[TIMER_RTO] == TIMER_OFF) {
    tcp_arm_rto(tcp); /* the persist timer: the send window is too small, or no record is free */
    if (tcp->user_timeout_ms && tcp->timers[TIMER_USER] == TIMER_OFF) {
      tcp->last_progress = tcp->stack->now;
      tcp_timer_set(tcp, TIMER_USER, tcp->stack->now + tcp->user_timeout_ms * NS_PER_MS);
    }
  }
}

bool tcp_send_new_probe(struct harp_tcp *tcp)
{
  int32_t room = seq_diff(tcp->snd.una + tcp->snd.wnd, tcp->snd.nxt);
  if (room < (int32_t)tcp->snd.mss || tcp->snd.fin_sent || !may_send_data(tcp)) {
    return false;
  }
  if (tcp->snd.nxt == tcp->snd.end && may_pull(tcp) && !pull(tcp, tcp->snd.mss)) {
    return false;
  }
  uint32_t length = HARP_MIN(tcp->snd.end - tcp->snd.nxt, tcp->snd.mss);
  return length && send_new(tcp, length, false, FOR_TRANSFER);
}

/* Sends the first segment in flight again. Its record gets no new send time; it only counts as
 * retransmitted, so it gives no RTT sample (Karn). */
static bool resend_first(struct harp_tcp *tcp)
{
  struct harp_record *record = tcp->flight.first;
  uint32_t payload = record->end - record->seq - record->fin;
  record->transmits = 2;
  /* A bare FIN needs no window: the peer accepts it at once. */
  bool fin_sent;
  return tcp_transmit_payload(tcp, record->reference, record->seq, HARP_MIN(payload, tcp->snd.mss),
                              payload == 0, &fin_sent) ||
         fin_sent;
}

void tcp_resend_without_record(struct harp_tcp *tcp)
{
  const struct harp_record *record = tcp->flight.first;
  bool splits = record->end - record->seq - record->fin > tcp->snd.mss;
  if (splits && tcp->stack->records.available == 0 && resend_first(tcp)) {
    COUNT(tcp->stack, tcp_retransmits);
    COUNT_N(tcp->stack, tcp_retransmit_bytes, tcp->snd.mss);
    tcp->retransmits++;
    tcp->bytes_retransmitted += tcp->snd.mss;
  }
}

bool tcp_send_window_probe(struct harp_tcp *tcp)
{
  bool sent;
  uint64_t last_send = tcp->last_send;
  if (tcp->flight.first) {
    sent = resend_first(tcp);
  } else {
    uint32_t unsent = tcp->snd.end - tcp->snd.nxt;
    bool fin = tcp->snd.fin_queued && unsent == 0; /* it has waited for a record */
    uint32_t length = fin ? 0 : HARP_MAX(HARP_MIN(tcp->snd.wnd, unsent), 1);
    sent = send_new(tcp, HARP_MIN(length, tcp->snd.mss), fin, FOR_WINDOW_PROBE) > 0;
  }
  if (tcp->snd.wnd == 0) {
    tcp->last_send = last_send; /* a probe of a closed window is no use of cwnd */
  }
  COUNT_N(tcp->stack, tcp_window_probes, sent);
  return sent;
}
