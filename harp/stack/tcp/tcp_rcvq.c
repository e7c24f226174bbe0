/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receive queue. The owner gets in-order payload by pointer at once. Payload that it does not
 * take is copied into packet buffers. Out-of-order blocks (tcp_ooo.c) are chains of packet
 * buffers. Small segments share the last packet buffer of their block, so they cannot exhaust the
 * pool before the window closes.
 *
 * Acknowledged bytes are never dropped: RCV.NXT advances only over bytes that were taken or
 * stored.
 */
#include "harp/stack/tcp/tcp_rcvq.h"

#include "harp/stack/bytes.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_ooo.h"

enum { MIN_ADVERTISED = 65536 }; /* bytes of window for a flow whose owner takes payload at once */

void tcp_packets_free(struct harp_pool *pool, struct harp_packet *packet)
{
  while (packet) {
    struct harp_packet *next = packet->next;
    pool_put(pool, packet);
    packet = next;
  }
}

/* Appends data to the chain as far as memory allows. keep: packet buffers to leave in the pool.
 * Returns the bytes stored. */
static uint32_t store(struct harp_tcp *tcp, struct harp_packet **first, struct harp_packet **last,
                      uint32_t seq, const uint8_t *data, uint32_t length, uint32_t keep)
{
  struct harp_pool *pool = &tcp->stack->packets;
  uint32_t stored = 0;
  while (stored < length) {
    struct harp_packet *packet = *last;
    if (!packet || packet->length == HARP_PACKET_DATA) {
      if (pool->available <= keep || !(packet = pool_get(pool))) {
        break;
      }
      packet->next = NULL;
      packet->seq = seq + stored;
      packet->offset = packet->length = 0;
      *(*last ? &(*last)->next : first) = packet;
      *last = packet;
    }
    uint32_t part = HARP_MIN(length - stored, HARP_PACKET_DATA - packet->length);
    memcpy(packet->data + packet->length, data + stored, part);
    packet->length += part;
    stored += part;
  }
  return stored;
}

/* Drops the bytes of a chain that lie before seq. */
static struct harp_packet *trim(struct harp_tcp *tcp, struct harp_packet *packet, uint32_t seq)
{
  while (packet && seq_le(packet->seq + packet->length, seq)) {
    struct harp_packet *next = packet->next;
    pool_put(&tcp->stack->packets, packet);
    packet = next;
  }
  if (packet && seq_lt(packet->seq + packet->offset, seq)) {
    packet->offset = seq - packet->seq;
  }
  return packet;
}

/* Drops the out-of-order block with the highest sequence. The peer retransmits it. */
static bool prune(struct harp_tcp *tcp)
{
  if (!tcp->rcv.ooo) {
    return false;
  }
  uint32_t farthest = tcp->rcv.ooo->count - 1u;
  const struct tcp_ooo_block *block = tcp_ooo_block_at(tcp, farthest);
  COUNT_N(tcp->stack, tcp_reassembly_pruned, block->end - block->start);
  tcp_packets_free(&tcp->stack->packets, block->first);
  tcp_ooo_remove(tcp, farthest);
  return true;
}

static uint32_t store_in_order(struct harp_tcp *tcp, const uint8_t *data, uint32_t length)
{
  uint32_t stored = 0;
  do {
    stored += store(tcp, &tcp->rcv.queue, &tcp->rcv.queue_tail, tcp->rcv.nxt + stored,
                    data + stored, length - stored, 0);
  } while (stored < length && prune(tcp));
  if (stored < length) {
    COUNT(tcp->stack, tcp_memory_drops);
  }
  tcp->rcv.queued += stored;
  return stored;
}

/* Moves out-of-order blocks that have become contiguous with RCV.NXT to the receive queue. */
static void take_blocks(struct harp_tcp *tcp)
{
  const struct tcp_ooo_block *block;
  while ((block = tcp_ooo_block_at(tcp, 0)) && seq_le(block->start, tcp->rcv.nxt)) {
    if (seq_lt(block->start, tcp->rcv.nxt)) {
      tcp_rcvq_duplicate(tcp, block->start, seq_min(block->end, tcp->rcv.nxt));
    }
    struct harp_packet *first = trim(tcp, block->first, tcp->rcv.nxt);
    if (first) {
      *(tcp->rcv.queue_tail ? &tcp->rcv.queue_tail->next : &tcp->rcv.queue) = first;
      tcp->rcv.queue_tail = block->last;
      tcp->rcv.queued += block->end - tcp->rcv.nxt;
      COUNT_N(tcp->stack, tcp_payload_in, block->end - tcp->rcv.nxt);
      tcp->bytes_in += block->end - tcp->rcv.nxt;
      tcp->rcv.nxt = block->end;
    }
    tcp_ooo_remove(tcp, 0);
  }
}

void tcp_rcvq_duplicate(struct harp_tcp *tcp, uint32_t start, uint32_t end)
{
  if (!tcp->sack) {
    return; /* no ACK can report it, so it would wait for ever */
  }
  bool none = tcp->rcv.dsack_start == tcp->rcv.dsack_end;
  if (none || (seq_le(start, tcp->rcv.dsack_end) && seq_ge(end, tcp->rcv.dsack_start))) {
    tcp->rcv.dsack_start = none ? start : seq_min(start, tcp->rcv.dsack_start);
    tcp->rcv.dsack_end = none ? end : seq_max(end, tcp->rcv.dsack_end);
  }
}

/* Merges a block with the next one if they are adjacent. */
static void join_next(struct harp_tcp *tcp, uint32_t index)
{
  struct tcp_ooo_block *block = tcp_ooo_block_at(tcp, index);
  const struct tcp_ooo_block *next = tcp_ooo_block_at(tcp, index + 1);
  if (next && block->end == next->start) {
    *(block->last ? &block->last->next : &block->first) = next->first;
    block->last = next->last;
    block->end = next->end;
    tcp_ooo_remove(tcp, index + 1);
  }
}

/* Stores [seq, end) in the out-of-order queue. Overlapping bytes keep their first version. */
static void insert_out_of_order(struct harp_tcp *tcp, uint32_t seq, const uint8_t *data,
                                uint32_t end)
{
  /* In-order data must find memory even when out-of-order data has filled the pool. */
  uint32_t keep = tcp->stack->packets.total / ORDERED_SHARE;
  while (seq_lt(seq, end)) {
    uint32_t index = tcp_ooo_blocks_before(tcp, seq);
    struct tcp_ooo_block *block = index ? tcp_ooo_block_at(tcp, index - 1) : NULL;
    if (block && seq_le(seq, block->end)) {
      index--;
      tcp_ooo_touch(tcp, block);
    } else if (!(block = tcp_ooo_insert(tcp, index, seq, keep))) {
      COUNT(tcp->stack, tcp_reassembly_drops);
      return;
    }
    if (seq_lt(seq, block->end)) {
      uint32_t known = seq_min(block->end, end);
      tcp_rcvq_duplicate(tcp, seq, known);
      data += known - seq;
      seq = known;
    }
    const struct tcp_ooo_block *next = tcp_ooo_block_at(tcp, index + 1);
    uint32_t stop = next ? seq_min(end, next->start) : end;
    if (seq_lt(seq, stop)) {
      uint32_t stored = store(tcp, &block->first, &block->last, seq, data, stop - seq, keep);
      block->end += stored;
      data += stored;
      seq += stored;
    }
    if (block->start == block->end) {
      tcp_ooo_remove(tcp, index);
    } else {
      join_next(tcp, index);
    }
    if (seq != stop) {
      COUNT(tcp->stack, tcp_reassembly_drops);
      return;
    }
  }
}

void tcp_rcvq_accept(struct harp_tcp *tcp, const uint8_t *data, uint32_t length, uint32_t taken)
{
  struct harp_stack *stack = tcp->stack;
  uint32_t accepted = taken;
  tcp->rcv.nxt += taken;
  if (taken < length) {
    uint32_t stored = store_in_order(tcp, data + taken, length - taken);
    tcp->rcv.nxt += stored;
    accepted += stored;
  }
  tcp->rcv.mem_pressure = accepted < length;
  tcp->bytes_in += accepted;
  COUNT_N(stack, tcp_payload_in, accepted);
  if (tcp->rcv.ooo) {
    take_blocks(tcp);
    tcp_rcvq_deliver(tcp);
  }
}

static void rcv_queue(struct harp_tcp *tcp, const uint8_t *data, uint32_t length)
{
  uint32_t taken = 0;
  if (!tcp->rcv.queue && tcp->ops->deliver) {
    taken = (uint32_t)tcp->ops->deliver(tcp->user, tcp, data, length);
  }
  if (tcp->state != TCP_CLOSE) {
    tcp_rcvq_accept(tcp, data, length, taken);
  }
}

void tcp_rcvq_payload(struct harp_tcp *tcp, uint32_t seq, const uint8_t *data, uint32_t length)
{
  uint32_t end = seq + length;
  if (seq_lt(seq, tcp->rcv.nxt)) {
    uint32_t known = seq_min(end, tcp->rcv.nxt);
    tcp_rcvq_duplicate(tcp, seq, known);
    data += known - seq;
    seq = known;
  }
  if (seq == end) {
    COUNT(tcp->stack, tcp_duplicates);
    return;
  }
  if (seq == tcp->rcv.nxt) {
    rcv_queue(tcp, data, end - seq);
  } else {
    COUNT(tcp->stack, tcp_out_of_order);
    tcp->out_of_order++;
    insert_out_of_order(tcp, seq, data, end);
  }
}

static void drop_head(struct harp_tcp *tcp)
{
  struct harp_packet *packet = tcp->rcv.queue;
  tcp->rcv.queue = packet->next;
  if (!tcp->rcv.queue) {
    tcp->rcv.queue_tail = NULL;
  }
  pool_put(&tcp->stack->packets, packet);
}

void tcp_rcvq_deliver(struct harp_tcp *tcp)
{
  while (tcp->rcv.queue && tcp->ops->deliver) {
    struct harp_packet *packet = tcp->rcv.queue;
    uint32_t length = packet->length - packet->offset;
    size_t taken = tcp->ops->deliver(tcp->user, tcp, packet->data + packet->offset, length);
    if (tcp->state == TCP_CLOSE) {
      return;
    }
    tcp->ack.may_wait = false; /* these bytes were acknowledged when they arrived */
    tcp->rcv.queued -= (uint32_t)taken;
    packet->offset += (uint32_t)taken;
    if (taken < length) {
      return;
    }
    drop_head(tcp);
  }
}

size_t tcp_packets_read(struct harp_pool *pool, struct harp_packet **first, void *data,
                        size_t length, bool peek)
{
  size_t done = 0;
  struct harp_packet *packet = *first;
  while (packet && done < length) {
    size_t part = HARP_MIN(length - done, (size_t)(packet->length - packet->offset));
    struct harp_packet *next = packet->next;
    memcpy((uint8_t *)data + done, packet->data + packet->offset, part);
    done += part;
    if (!peek) {
      packet->offset += (uint32_t)part;
      if (packet->offset == packet->length) {
        *first = next;
        pool_put(pool, packet);
      }
    }
    packet = next;
  }
  return done;
}

size_t tcp_rcvq_read(struct harp_tcp *tcp, void *data, size_t length, bool peek)
{
  size_t done = tcp_packets_read(&tcp->stack->packets, &tcp->rcv.queue, data, length, peek);
  if (!tcp->rcv.queue) {
    tcp->rcv.queue_tail = NULL;
  }
  if (!peek) {
    tcp->rcv.queued -= (uint32_t)done;
  }
  return done;
}

struct harp_packet *tcp_rcvq_take(struct harp_tcp *tcp)
{
  struct harp_packet *first = tcp->rcv.queue;
  tcp->rcv.queue = tcp->rcv.queue_tail = NULL;
  tcp->rcv.queued = 0;
  return first;
}

void tcp_rcvq_drop_out_of_order(struct harp_tcp *tcp)
{
  while (tcp->rcv.ooo) {
    tcp_packets_free(&tcp->stack->packets, tcp_ooo_block_at(tcp, 0)->first);
    tcp_ooo_remove(tcp, 0);
  }
}

void tcp_rcvq_clear(struct harp_tcp *tcp)
{
  tcp_packets_free(&tcp->stack->packets, tcp_rcvq_take(tcp));
  tcp_rcvq_drop_out_of_order(tcp);
}

/* Whether a FIN is out of order and the byte before it is missing too. */
static bool is_fin_alone(const struct harp_tcp *tcp)
{
  if (!tcp->fin_waiting || seq_le(tcp->rcv.fin_seq, tcp->rcv.nxt)) {
    return false;
  }
  uint32_t before = tcp_ooo_blocks_before(tcp, tcp->rcv.fin_seq);
  return before == 0 || seq_lt(tcp_ooo_block_at(tcp, before - 1)->end, tcp->rcv.fin_seq);
}

static int add_block(uint32_t blocks[][2], int count, int max, uint32_t start, uint32_t end)
{
  if (count < max) {
    blocks[count][0] = start;
    blocks[count++][1] = end;
  }
  return count;
}

int tcp_rcvq_sacks(struct harp_tcp *tcp, uint32_t blocks[][2], int max)
{
  int count = 0;
  if (tcp->rcv.dsack_start != tcp->rcv.dsack_end) {
    count = add_block(blocks, count, max, tcp->rcv.dsack_start, tcp->rcv.dsack_end);
    tcp->rcv.dsack_start = tcp->rcv.dsack_end = 0; /* RFC 2883, 4: a DSACK is sent once */
  }
  const struct tcp_ooo_block *block = tcp_ooo_newest(tcp);
  uint32_t fin = tcp->rcv.fin_seq;
  bool fin_alone = is_fin_alone(tcp);
  if (fin_alone && (tcp->rcv.fin_newest || !block)) {
    count = add_block(blocks, count, max, fin, fin + 1);
    fin_alone = false;
  }
  for (; block && count < max; block = tcp_ooo_older(tcp, block)) {
    bool with_fin = tcp->fin_waiting && block->end == fin;
    count = add_block(blocks, count, max, block->start, block->end + with_fin);
    if (fin_alone) {
      /* The FIN comes second, whatever its age: it shows that the peer has sent everything before
       * it. */
      count = add_block(blocks, count, max, fin, fin + 1);
      fin_alone = false;
    }
  }
  return count;
}

/* Returns how many bytes could be received now. Payload that the owner takes at once needs no
 * memory, so other connections that use all of it must not stop this flow. The stack drops payload
 * that the owner does not take if there is no memory. */
static uint32_t receive_room(const struct harp_tcp *tcp)
{
  uint32_t room = tcp->rcv.buf > tcp->rcv.queued ? tcp->rcv.buf - tcp->rcv.queued : 0;
  uint64_t memory = (uint64_t)tcp->stack->packets.available * HARP_PACKET_DATA;
  if (tcp->ops->deliver && !tcp->rcv.queue && !tcp->rcv.mem_pressure) {
    memory = HARP_MAX(memory, (uint64_t)MIN_ADVERTISED);
  }
  return (uint32_t)HARP_MIN((uint64_t)room, memory);
}

/* Returns the limit of the window's step, bytes: an eighth of packet memory. With little memory
 * there may never be room for a full segment. */
static uint32_t memory_step(const struct harp_tcp *tcp)
{
  uint64_t memory = (uint64_t)tcp->stack->packets.total * HARP_PACKET_DATA / 8;
  return (uint32_t)HARP_MIN(memory, (uint64_t)UINT32_MAX);
}

static uint32_t most_in_field(const struct harp_tcp *tcp) { return 65535u << tcp->rcv.wscale; }

/* Returns half of the buffer, or half of the largest value of the window field if that is less. An
 * update beyond the field's maximum would look like the previous ACK, and a peer without SACK would
 * count it as a duplicate ACK (RFC 5681, 2). */
static uint32_t half_window(const struct harp_tcp *tcp)
{
  return HARP_MIN(tcp->rcv.buf, most_in_field(tcp)) / 2;
}

void tcp_window_opened(struct harp_tcp *tcp)
{
  uint32_t shown = tcp->rcv.mem_pressure ? 0 : tcp->rcv.right - tcp->rcv.nxt;
  uint32_t half = half_window(tcp);
  uint32_t step = HARP_MIN(HARP_MIN(half, 2 * tcp->ack.rcv_mss), memory_step(tcp));
  if (tcp_can_receive(tcp) && shown < half && receive_room(tcp) >= shown + step) {
    tcp_ack_at_once(tcp);
  }
}

uint32_t tcp_rcvq_window(struct harp_tcp *tcp)
{
  uint32_t room = receive_room(tcp);
  uint32_t shown = tcp->rcv.right - tcp->rcv.nxt;
  /* All windows together may exceed the memory that the connections share. A peer whose data was
   * dropped for lack of memory must not take this host for dead. So it sees a zero window and sends
   * window probes (RFC 9293, 3.8.6.1). The data that it has sent is still accepted once there is
   * memory. */
  if (tcp->rcv.mem_pressure && room < HARP_MIN(half_window(tcp), 2 * tcp->ack.rcv_mss)) {
    return 0;
  }
  /* Silly window syndrome avoidance (RFC 1122, 4.2.3.3): the right edge moves by at least a full
   * segment or half the buffer, or not at all. */
  uint32_t step = HARP_MIN(HARP_MIN(tcp->rcv.buf / 2, tcp->ack.rcv_mss), memory_step(tcp));
  /* A right edge that moves is rounded up to the window's unit, or a small window would become 0.
   * One that stays is rounded down (RFC 7323, 2.4), or it would move with every ACK, beyond the
   * memory. */
  uint32_t unit = 1u << tcp->rcv.wscale;
  if (room < shown + step) {
    return shown & ~(unit - 1);
  }
  room = (room + unit - 1) & ~(unit - 1);
  return HARP_MIN(room, most_in_field(tcp));
}
