/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/books.h"

#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/tcp/tcp_ooo.h"
#include "harp/stack/tcp/tcp_sndq.h"

enum { LONG_LIST = 256 }; /* records */

#define REQUIRE(condition) \
  do {                     \
    if (!(condition)) {    \
      return #condition;   \
    }                      \
  } while (0)

/* The bytes of the records, by state. */
struct sums {
  uint32_t sacked, lost, again, count;
};

static const char *records(const struct harp_tcp *tcp, bool whole)
{
  struct sums sums = {0};
  uint32_t at = tcp->snd.una;
  for (const struct harp_record *record = tcp->flight.first; record; record = record->next) {
    uint32_t length = record->end - record->seq;
    REQUIRE(record->seq == at && length > 0);
    REQUIRE(record->next || record == tcp->flight.last);
    bool again = record->state == RECORD_RETRANSMITTED;
    sums.sacked += record->state == RECORD_SACKED ? length : 0;
    sums.lost += record->state == RECORD_LOST || again ? length : 0;
    sums.again += again ? length : 0;
    at = record->end;
    if (++sums.count > LONG_LIST && !whole) {
      return NULL;
    }
  }
  REQUIRE(at == tcp->snd.nxt);
  REQUIRE(sums.sacked == tcp->flight.sacked_out);
  REQUIRE(sums.lost == tcp->flight.lost_out);
  REQUIRE(sums.again == tcp->flight.retrans_out);
  return NULL;
}

static const char *sending(const struct harp_tcp *tcp)
{
  REQUIRE(seq_le(tcp->snd.una, tcp->snd.nxt));
  REQUIRE(seq_le(tcp->snd.nxt, tcp->snd.end + tcp->snd.fin_sent));
  REQUIRE(tcp->flight.sacked_out + tcp->flight.lost_out <=
          tcp->snd.nxt - tcp->snd.una + tcp->flight.retrans_out);
  REQUIRE(tcp->cwnd <= 1u << 30);
  REQUIRE(tcp->cwnd > 0 || tcp->recovery != RECOVERY_NONE);
  return NULL;
}

/* The order by sequence and the order by time hold the same blocks. Each block has a hole before
 * it. The table exists only if there are blocks. */
static const char *ooo_queue(const struct harp_tcp *tcp)
{
  uint32_t at = tcp->rcv.nxt, count = 0;
  REQUIRE(!tcp->rcv.ooo || (tcp->rcv.ooo->count > 0 && tcp->rcv.ooo->count <= TCP_MAX_OOO_BLOCKS));
  for (const struct tcp_ooo_block *block; (block = tcp_ooo_block_at(tcp, count)); count++) {
    REQUIRE(seq_gt(block->start, at) && seq_gt(block->end, block->start));
    REQUIRE(seq_le(block->end, tcp->rcv.right));
    at = block->end;
  }
  const struct tcp_ooo_block *block = tcp_ooo_newest(tcp);
  for (; block && count > 0; block = tcp_ooo_older(tcp, block)) {
    count--;
  }
  REQUIRE(count == 0 && !block);
  return NULL;
}

static const char *receiving(const struct harp_tcp *tcp)
{
  uint32_t unit = 1u << tcp->rcv.wscale;
  REQUIRE(tcp->rcv.queued + (tcp->rcv.right - tcp->rcv.nxt) < tcp->rcv.buf + unit);
  return ooo_queue(tcp);
}

/* A connection that waits for the peer has a timer, unless its output is still pending. */
static const char *timers(const struct harp_tcp *tcp)
{
  uint64_t earliest = TIMER_OFF;
  for (int i = 0; i < TIMERS; i++) {
    earliest = HARP_MIN(earliest, tcp->timers[i]);
  }
  REQUIRE(earliest == TIMER_OFF || tcp->heap_index != UINT32_MAX);
  REQUIRE(earliest == TIMER_OFF || tcp->heap_key <= earliest);
  bool waits = tcp->snd.una != tcp->snd.end + tcp->snd.fin_sent || tcp->snd.fin_queued;
  REQUIRE(!waits || tcp->dirty || tcp->timers[TIMER_RTO] != TIMER_OFF);
  uint64_t farthest = tcp->stack->now + tcp->stack->config.rto_max_us * NS_PER_US;
  REQUIRE(tcp->timers[TIMER_RTO] == TIMER_OFF || tcp->timers[TIMER_RTO] <= farthest);
  return NULL;
}

const char *tcp_books(const struct harp_tcp *tcp, bool whole)
{
  const char *wrong = sending(tcp);
  wrong = wrong ? wrong : records(tcp, whole);
  wrong = wrong ? wrong : receiving(tcp);
  return wrong ? wrong : timers(tcp);
}

const char *stack_in_use(const struct harp_stack *stack, const struct harp_pool **pool)
{
  const struct {
    const struct harp_pool *pool;
    const char *what;
  } pools[] = {
      {&stack->connections, "connections"},
      {&stack->packets, "packet buffers"},
      {&stack->references, "references"},
      {&stack->records, "transmit records"},
  };
  for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
    if (pools[i].pool->available != pools[i].pool->total) {
      *pool = pools[i].pool;
      return pools[i].what;
    }
  }
  return NULL;
}
