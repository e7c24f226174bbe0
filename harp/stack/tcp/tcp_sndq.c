/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send queue: references to bytes that somebody else keeps until they are
 * acknowledged, and the transmit records of what is in flight.
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
  if (tcp->reference_count >= TCP_MAX_REFERENCES) {
    return -ENOBUFS;
  }
  struct harp_reference *reference = pool_get(&stack->references);
  if (!reference) {
    return -ENOBUFS;
  }
  *reference = (struct harp_reference){
      .data = data, .packet = packet, .seq = tcp->snd_end, .length = length};
  if (tcp->references_last) {
    tcp->references_last->next = reference;
  } else {
    tcp->references = reference;
  }
  tcp->references_last = reference;
  if (!tcp->send_cursor) {
    tcp->send_cursor = reference;
  }
  tcp->reference_count++;
  tcp->snd_end += length;
  return 0;
}

void tcp_sndq_extend(struct harp_tcp *tcp, uint32_t length)
{
  tcp->references_last->length += length;
  tcp->snd_end += length;
  if (!tcp->send_cursor) {
    tcp->send_cursor = tcp->references_last;
  }
}

static void free_reference(struct harp_tcp *tcp)
{
  struct harp_reference *reference = tcp->references;
  tcp->references = reference->next;
  if (!tcp->references) {
    tcp->references_last = NULL;
  }
  if (tcp->send_cursor == reference) {
    tcp->send_cursor = reference->next;
  }
  if (reference->packet) {
    pool_put(&tcp->stack->packets, reference->packet);
  }
  pool_put(&tcp->stack->references, reference);
  tcp->reference_count--;
}

void tcp_sndq_release(struct harp_tcp *tcp, uint32_t una)
{
  while (tcp->references && seq_le(tcp->references->seq + tcp->references->length, una)) {
    free_reference(tcp);
  }
}

void tcp_sndq_clear(struct harp_tcp *tcp)
{
  while (tcp->records) {
    tcp_record_free(tcp, tcp->records);
  }
  while (tcp->references) {
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

uint64_t tcp_record_age(const struct harp_tcp *tcp, const struct harp_record *record)
{
  uint64_t now = tcp->stack->now;
  return now > record->sent ? now - record->sent : 0;
}

void tcp_record_sent(struct harp_tcp *tcp, struct harp_record *record)
{
  record->sent = tcp->stack->now;
  if (tcp->newest) {
    record->sent = HARP_MAX(record->sent, tcp->newest->sent + (record->transmits > 1));
  }
  tcp_record_in_flight(tcp, record);
}

void tcp_record_in_flight(struct harp_tcp *tcp, struct harp_record *record)
{
  record->newer = NULL;
  record->older = tcp->newest;
  if (tcp->newest) {
    tcp->newest->newer = record;
  } else {
    tcp->oldest = record;
  }
  tcp->newest = record;
}

void tcp_record_queue_lost(struct harp_tcp *tcp, struct harp_record *record)
{
  record->newer = NULL;
  record->older = tcp->lost_last;
  if (tcp->lost_last) {
    tcp->lost_last->newer = record;
  } else {
    tcp->lost_first = record;
  }
  tcp->lost_last = record;
}

void tcp_record_link_sacked(struct harp_tcp *tcp, struct harp_record *record,
                            struct harp_record *run)
{
  record->older = run;
  record->newer = run ? run->newer : tcp->sacked_first;
  *(record->newer ? &record->newer->older : &tcp->sacked_last) = record;
  *(run ? &run->newer : &tcp->sacked_first) = record;
}

void tcp_record_unlink(struct harp_tcp *tcp, struct harp_record *record)
{
  struct harp_record **first = &tcp->oldest, **last = &tcp->newest;
  if (record->sacked) {
    first = &tcp->sacked_first;
    last = &tcp->sacked_last;
    if (tcp->sack_hint == record) {
      tcp->sack_hint = record->older;
    }
  } else if (record->lost && !record->retransmitted) {
    first = &tcp->lost_first;
    last = &tcp->lost_last;
  }
  *(record->older ? &record->older->newer : first) = record->newer;
  *(record->newer ? &record->newer->older : last) = record->older;
}

struct harp_record *tcp_record_append(struct harp_tcp *tcp, uint32_t seq, uint32_t end,
                                      struct harp_reference *reference, bool fin)
{
  struct harp_record *record = pool_get(&tcp->stack->records);
  if (!record) {
    return NULL;
  }
  *record = (struct harp_record){
      .prev = tcp->records_last,
      .reference = reference,
      .seq = seq,
      .end = end,
      .transmits = 1,
      .fin = fin,
  };
  *(tcp->records_last ? &tcp->records_last->next : &tcp->records) = record;
  tcp->records_last = record;
  tcp_record_sent(tcp, record);
  return record;
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
  *(right->next ? &right->next->prev : &tcp->records_last) = right;
  /* Same time, higher sequence: directly behind in its order. */
  bool waits = record->lost && !record->retransmitted;
  right->older = record;
  record->newer = right;
  *(right->newer ? &right->newer->older : waits ? &tcp->lost_last : &tcp->newest) = right;
  return right;
}

void tcp_record_free(struct harp_tcp *tcp, struct harp_record *record)
{
  tcp_record_unlink(tcp, record);
  *(record->prev ? &record->prev->next : &tcp->records) = record->next;
  *(record->next ? &record->next->prev : &tcp->records_last) = record->prev;
  pool_put(&tcp->stack->records, record);
}
