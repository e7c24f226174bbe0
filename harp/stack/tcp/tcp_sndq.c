/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send queue: references to bytes that the owner keeps until they are acknowledged, and the
 * transmit records of the data in flight.
 */
#include "harp/stack/tcp/tcp_sndq.h"

#include "harp/stack/bytes.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

int tcp_sndq_push(struct harp_tcp *tcp, const void *data, uint32_t length,
                  struct harp_packet *packet)
{
  struct harp_stack *stack = tcp->stack;
  if (tcp->sndq.count >= TCP_MAX_REFERENCES) {
    return -ENOBUFS;
  }
  struct harp_reference *reference = pool_get(&stack->references);
  if (!reference) {
    return -ENOBUFS;
  }
  *reference = (struct harp_reference){
      .data = data, .packet = packet, .seq = tcp->snd.end, .length = length};
  if (tcp->sndq.last) {
    tcp->sndq.last->next = reference;
  } else {
    tcp->sndq.first = reference;
  }
  tcp->sndq.last = reference;
  if (!tcp->sndq.cursor) {
    tcp->sndq.cursor = reference;
  }
  tcp->sndq.count++;
  tcp->snd.end += length;
  return 0;
}

void tcp_sndq_extend(struct harp_tcp *tcp, uint32_t length)
{
  tcp->sndq.last->length += length;
  tcp->snd.end += length;
  if (!tcp->sndq.cursor) {
    tcp->sndq.cursor = tcp->sndq.last;
  }
}

static void free_reference(struct harp_tcp *tcp)
{
  struct harp_reference *reference = tcp->sndq.first;
  tcp->sndq.first = reference->next;
  if (!tcp->sndq.first) {
    tcp->sndq.last = NULL;
  }
  if (tcp->sndq.cursor == reference) {
    tcp->sndq.cursor = reference->next;
  }
  if (reference->packet) {
    pool_put(&tcp->stack->packets, reference->packet);
  }
  pool_put(&tcp->stack->references, reference);
  tcp->sndq.count--;
}

void tcp_sndq_release(struct harp_tcp *tcp, uint32_t una)
{
  while (tcp->sndq.first && seq_le(tcp->sndq.first->seq + tcp->sndq.first->length, una)) {
    free_reference(tcp);
  }
}

void tcp_sndq_clear(struct harp_tcp *tcp)
{
  while (tcp->flight.first) {
    tcp_record_free(tcp, tcp->flight.first);
  }
  while (tcp->sndq.first) {
    free_reference(tcp);
  }
}

struct harp_reference *tcp_sndq_seek(struct harp_reference *reference, uint32_t seq)
{
  while (reference && seq_ge(seq, reference->seq + reference->length)) {
    reference = reference->next;
  }
  return reference;
}

int tcp_sndq_gather(const struct harp_reference *reference, uint32_t seq, uint32_t length,
                    struct iovec *iov, int max, uint32_t *covered)
{
  if (reference && reference->length - (seq - reference->seq) >= length) {
    iov[0].iov_base = (void *)(uintptr_t)(reference->data + (seq - reference->seq));
    iov[0].iov_len = *covered = length;
    return length > 0;
  }
  int count = 0;
  uint32_t left = length;
  while (left && reference && count < max) {
    uint32_t offset = seq - reference->seq;
    uint32_t part = HARP_MIN(left, reference->length - offset);
    if (part) {
      iov[count].iov_base = (void *)(uintptr_t)(reference->data + offset);
      iov[count++].iov_len = part;
    }
    seq += part;
    left -= part;
    if (reference->end && seq == reference->seq + reference->length) {
      break;
    }
    reference = reference->next;
  }
  *covered = length - left;
  return count;
}

void tcp_record_sent(struct harp_tcp *tcp, struct harp_record *record)
{
  record->sent = tcp->stack->now;
  if (tcp->flight.newest) {
    record->sent = HARP_MAX(record->sent, tcp->flight.newest->sent + (record->transmits > 1));
  }
  tcp_record_in_flight(tcp, record);
}

static inline void append_to(struct harp_record **first, struct harp_record **last,
                             struct harp_record *record)
{
  record->newer = NULL;
  record->older = *last;
  *(*last ? &(*last)->newer : first) = record;
  *last = record;
}

void tcp_record_in_flight(struct harp_tcp *tcp, struct harp_record *record)
{
  append_to(&tcp->flight.oldest, &tcp->flight.newest, record);
}

void tcp_record_queue_lost(struct harp_tcp *tcp, struct harp_record *record)
{
  append_to(&tcp->flight.lost_first, &tcp->flight.lost_last, record);
}

void tcp_record_link_sacked(struct harp_tcp *tcp, struct harp_record *record,
                            struct harp_record *run)
{
  record->older = run;
  record->newer = run ? run->newer : tcp->flight.sacked_first;
  *(record->newer ? &record->newer->older : &tcp->flight.sacked_last) = record;
  *(run ? &run->newer : &tcp->flight.sacked_first) = record;
  tcp->flight.sacked_runs++;
}

void tcp_record_unlink(struct harp_tcp *tcp, struct harp_record *record)
{
  struct harp_record **first = &tcp->flight.oldest, **last = &tcp->flight.newest;
  if (record->state == RECORD_SACKED) {
    first = &tcp->flight.sacked_first;
    last = &tcp->flight.sacked_last;
    tcp->flight.sacked_runs--;
    if (tcp->flight.sack_hint == record) {
      tcp->flight.sack_hint = record->older;
    }
  } else if (record->state == RECORD_LOST) {
    first = &tcp->flight.lost_first;
    last = &tcp->flight.lost_last;
  }
  *(record->older ? &record->older->newer : first) = record->newer;
  *(record->newer ? &record->newer->older : last) = record->older;
}

void tcp_record_append(struct harp_tcp *tcp, uint32_t seq, uint32_t end,
                       struct harp_reference *reference, bool fin)
{
  struct harp_record *record = pool_get(&tcp->stack->records);
  *record = (struct harp_record){
      .prev = tcp->flight.last,
      .reference = reference,
      .seq = seq,
      .end = end,
      .transmits = 1,
      .state = RECORD_IN_FLIGHT,
      .fin = fin,
  };
  *(tcp->flight.last ? &tcp->flight.last->next : &tcp->flight.first) = record;
  tcp->flight.last = record;
  tcp_record_sent(tcp, record);
}

struct harp_record *tcp_record_split(struct harp_tcp *tcp, struct harp_record *record, uint32_t seq)
{
  struct harp_record *right = pool_get(&tcp->stack->records);
  if (!right) {
    return NULL;
  }
  *right = *record;
  right->seq = seq;
  right->prev = record;
  right->reference = tcp_sndq_seek(record->reference, seq);
  record->end = seq;
  record->fin = false;
  record->next = right;
  *(right->next ? &right->next->prev : &tcp->flight.last) = right;
  /* The right part has the same send time and a higher sequence, so it follows record in its list.
   */
  right->older = record;
  record->newer = right;
  struct harp_record **last = record->state == RECORD_LOST ? &tcp->flight.lost_last
                                                           : &tcp->flight.newest;
  *(right->newer ? &right->newer->older : last) = right;
  return right;
}

void tcp_record_free(struct harp_tcp *tcp, struct harp_record *record)
{
  tcp_record_unlink(tcp, record);
  *(record->prev ? &record->prev->next : &tcp->flight.first) = record->next;
  *(record->next ? &record->next->prev : &tcp->flight.last) = record->prev;
  pool_put(&tcp->stack->records, record);
}
