/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scoreboard: SACK state of the transmit records (RFC 2018, RFC 2883). Adjacent SACKed records
 * are merged into one record, a run, and the runs form a list. The search for a block walks the
 * runs, from the one that grew last, and then at most half of one hole. It never walks the whole
 * window. The number of runs has a limit, because a peer that lies could SACK each second byte.
 */

#include "harp/stack/tcp/tcp_sack.h"

#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_segment.h"
#include "harp/stack/tcp/tcp_sndq.h"

enum { RUNS_MAX = 512 /* of a connection */ };

/* Returns the last run that begins at seq or before; NULL: none. */
static struct harp_record *sacked_before(struct harp_tcp *tcp, uint32_t seq)
{
  struct harp_record *run = tcp->flight.sack_hint ? tcp->flight.sack_hint : tcp->flight.sacked_last;
  uint64_t steps = 1;
  for (; run && seq_gt(run->seq, seq); run = run->older) {
    steps++;
  }
  struct harp_record *next = run ? run->newer : tcp->flight.sacked_first;
  for (; next && seq_le(next->seq, seq); next = next->newer) {
    run = next;
    steps++;
  }
  COUNT_N(tcp->stack, tcp_sack_steps, steps);
  return run;
}

/* Returns the record that holds seq, in the hole after run (NULL: the first hole). It searches from
 * both ends of the hole. So all searches in a hole of n records together cost O(n log n), whatever
 * order the peer chooses. */
static struct harp_record *find_in_hole(struct harp_tcp *tcp, struct harp_record *run, uint32_t seq)
{
  struct harp_record *beyond = run ? run->newer : tcp->flight.sacked_first;
  struct harp_record *up = run ? run->next : tcp->flight.first;
  struct harp_record *down = beyond ? beyond->prev : tcp->flight.last;
  uint64_t steps = 1;
  while (seq_le(up->end, seq) && seq_gt(down->seq, seq)) {
    up = up->next;
    down = down->prev;
    steps++;
  }
  COUNT_N(tcp->stack, tcp_sack_steps, steps);
  return seq_gt(up->end, seq) ? up : down;
}

/* Merges a run into the adjacent one before it. */
static void join(struct harp_tcp *tcp, struct harp_record *run)
{
  struct harp_record *before = run->prev;
  before->end = run->end;
  before->fin = run->fin;
  tcp_record_free(tcp, run);
}

/* Marks a record SACKed and adds it to the runs. run: the last run before it. Returns the run that
 * holds the record. */
static struct harp_record *mark_sacked(struct harp_tcp *tcp, struct harp_record *record,
                                       struct harp_record *run, struct harp_ack_result *result)
{
  tcp_rack_update(tcp, record, record->end, result);
  tcp_record_unlink(tcp, record);
  record->state = RECORD_SACKED;
  tcp->flight.sacked_out += record->end - record->seq;
  tcp_record_link_sacked(tcp, record, run);
  if (record->next && record->next->state == RECORD_SACKED) {
    join(tcp, record->next);
  }
  if (record->prev && record->prev->state == RECORD_SACKED) {
    join(tcp, record);
    record = run;
  }
  tcp->flight.sack_hint = record;
  return record;
}

/* Splits a record at the edge of a SACK block. All connections share the records, so the SACK
 * blocks of one peer must not use the last eighth. */
static struct harp_record *split_for_block(struct harp_tcp *tcp, struct harp_record *record,
                                           uint32_t at)
{
  const struct harp_pool *records = &tcp->stack->records;
  bool enough = records->available > records->total / SACK_SHARE;
  return enough ? tcp_record_split(tcp, record, at) : NULL;
}

/* Whether the block [start, end) behind run may be recorded: there is room for another run, or it
 * makes one longer. RFC 2018, 8 lets a sender forget blocks. */
static bool may_take(const struct harp_tcp *tcp, const struct harp_record *run, uint32_t start,
                     uint32_t end)
{
  const struct harp_record *beyond = run ? run->newer : tcp->flight.sacked_first;
  return tcp->flight.sacked_runs < RUNS_MAX || (run && run->end == start) ||
         (beyond && seq_le(beyond->seq, end));
}

/* Processes one SACK block: [start, end) has arrived. */
static void take_block(struct harp_tcp *tcp, uint32_t start, uint32_t end,
                       struct harp_ack_result *result)
{
  struct harp_record *run = sacked_before(tcp, start);
  if (run && seq_gt(run->end, start)) {
    start = run->end;
  }
  if (seq_lt(start, end) && !may_take(tcp, run, start, end)) {
    COUNT(tcp->stack, tcp_sack_ignored);
    return;
  }
  while (seq_lt(start, end)) {
    struct harp_record *record = find_in_hole(tcp, run, start);
    if (seq_lt(record->seq, start)) {
      record = split_for_block(tcp, record, start);
    }
    if (!record || (seq_gt(record->end, end) && !split_for_block(tcp, record, end))) {
      return; /* no record for the split: the peer repeats the block */
    }
    run = mark_sacked(tcp, record, run, result);
    start = run->end;
  }
}

/* RFC 2883, 4: a DSACK is a first block below SEG.ACK or within the second block. */
static bool is_dsack(const struct harp_segment *segment)
{
  if (seq_le(segment->sack[0].end, segment->ack)) {
    return true;
  }
  return segment->sack_count > 1 && seq_ge(segment->sack[0].start, segment->sack[1].start) &&
         seq_le(segment->sack[0].end, segment->sack[1].end);
}

void tcp_sack_input(struct harp_tcp *tcp, const struct harp_segment *segment,
                    struct harp_ack_result *result)
{
  uint32_t highest = tcp->flight.high_sacked;
  for (int i = 0; i < segment->sack_count; i++) {
    uint32_t start = segment->sack[i].start, end = segment->sack[i].end;
    bool sane = seq_lt(start, end) && end - start <= (1u << 30) && seq_le(end, tcp->snd.nxt);
    if (i == 0 && sane && is_dsack(segment)) {
      result->dsack = end - start;
      result->dsack_end = end;
      tcp->duplicates_reported += (end - start + tcp->snd.mss - 1) / tcp->snd.mss;
      continue;
    }
    if (!sane || seq_lt(start, tcp->snd.una)) {
      COUNT(tcp->stack, tcp_sack_ignored);
      continue;
    }
    COUNT(tcp->stack, tcp_sack_in);
    take_block(tcp, start, end, result);
    highest = seq_max(highest, end);
  }
  tcp->flight.high_sacked = highest;
}

void tcp_sack_forget(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_sack_reneged);
  struct harp_record *run;
  while ((run = tcp->flight.sacked_first)) {
    tcp_record_unlink(tcp, run);
    run->state = RECORD_IN_FLIGHT;
    run->transmits = 2; /* a run has several send times: no RTT sample (Karn) */
    tcp_record_in_flight(tcp, run);
  }
  tcp->flight.sacked_out = 0;
}
