/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack must be like after every event: its books agree, its memory is
 * bounded, and whatever it waits for has a timer. */
#include "harp/stack/internal.h"
#include "tests/sim/sim.h"

enum {
  ENDS_A_TIME = 8,    /* of a host are looked at after an event, in turn */
  LONG_LIST = 256,    /* records; longer lists are walked now and then */
  LONG_LIST_TURN = 64,
};

#define EXPECT(end, condition)                                                                   \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      sim_violation((end)->flow->sim, "connection %llu, %s: not so: %s",                         \
                    (unsigned long long)(end)->flow->id,                                         \
                    (end) == &(end)->flow->end[0] ? "client" : "server", #condition);            \
    }                                                                                            \
  } while (0)

/* The bytes of the records by what has become of them. */
struct sums {
  uint32_t sacked, lost, again, count;
};

static void check_records(struct sim_end *end) {
  const struct harp_tcp *tcp = end->tcp;
  struct sums sums = {0};
  uint32_t at = tcp->snd_una;
  for (const struct harp_record *record = tcp->records; record; record = record->next) {
    uint32_t length = record->end - record->seq;
    EXPECT(end, record->seq == at && length > 0);
    EXPECT(end, !(record->sacked && (record->lost || record->retransmitted)));
    EXPECT(end, record->next || record == tcp->records_last);
    sums.sacked += record->sacked ? length : 0;
    sums.lost += record->lost ? length : 0;
    sums.again += record->retransmitted ? length : 0;
    at = record->end;
    if (++sums.count > LONG_LIST && end->flow->sim->event_total % LONG_LIST_TURN) {
      return;
    }
  }
  EXPECT(end, at == tcp->snd_nxt);
  EXPECT(end, sums.sacked == tcp->sacked_out);
  EXPECT(end, sums.lost == tcp->lost_out);
  EXPECT(end, sums.again == tcp->retrans_out);
}

static void check_sending(struct sim_end *end) {
  const struct harp_tcp *tcp = end->tcp;
  EXPECT(end, seq_le(tcp->snd_una, tcp->snd_nxt));
  EXPECT(end, seq_le(tcp->snd_nxt, tcp->snd_end + tcp->fin_sent));
  EXPECT(end, tcp->sacked_out + tcp->lost_out <= tcp->snd_nxt - tcp->snd_una + tcp->retrans_out);
  EXPECT(end, tcp->cwnd <= 1u << 30);
  EXPECT(end, tcp->cwnd > 0 || tcp->recovery != RECOVERY_NONE);
  EXPECT(end, end->acked <= end->pushed);
  check_records(end);
}

/* What was acknowledged has been received: the sender's memory is let go of no earlier. */
static void check_acknowledged(struct sim_end *end) {
  const struct sim_end *peer = end->peer;
  uint64_t there = peer->tcp ? peer->tcp->bytes_in : peer->received;
  EXPECT(end, end->acked <= there);
}

static void check_receiving(struct sim_end *end) {
  const struct harp_tcp *tcp = end->tcp;
  uint32_t unit = 1u << tcp->rcv_wscale;
  EXPECT(end, tcp->queued + (tcp->rcv_right - tcp->rcv_nxt) < tcp->rcvbuf + unit);
  EXPECT(end, tcp->run_count <= TCP_MAX_RUNS);
  uint32_t at = tcp->rcv_nxt, count = 0;
  for (const struct harp_run *run = tcp->runs; run; run = run->next, count++) {
    EXPECT(end, seq_gt(run->start, at) && seq_gt(run->end, run->start));
    EXPECT(end, seq_le(run->end, tcp->rcv_right));
    at = run->end;
  }
  EXPECT(end, count == tcp->run_count);
}

/* Whoever waits for the peer has a timer, unless it is its turn now. */
static void check_timers(struct sim_end *end) {
  const struct harp_tcp *tcp = end->tcp;
  uint64_t earliest = TIMER_OFF;
  for (int i = 0; i < TIMERS; i++) {
    earliest = HARP_MIN(earliest, tcp->timers[i]);
  }
  EXPECT(end, earliest == TIMER_OFF || tcp->heap_index != UINT32_MAX);
  EXPECT(end, earliest == TIMER_OFF || tcp->heap_key <= earliest);
  bool waits = tcp->snd_una != tcp->snd_end + tcp->fin_sent || tcp->fin_queued;
  EXPECT(end, !waits || tcp->dirty || tcp->timers[TIMER_RETRANSMIT] != TIMER_OFF);
  uint64_t farthest = tcp->stack->now + tcp->stack->config.rto_max_us * NS_PER_US;
  EXPECT(end, tcp->timers[TIMER_RETRANSMIT] == TIMER_OFF ||
                  tcp->timers[TIMER_RETRANSMIT] <= farthest);
}

void check_end(struct sim_end *end) {
  if (end->tcp) {
    check_acknowledged(end);
  }
}

void check_host(struct sim_host *host) {
  const struct harp_stack *stack = host->stack;
  struct sim *sim = host->sim;
  uint32_t looked = HARP_MIN(host->ends_used, (uint32_t)ENDS_A_TIME);
  for (uint32_t i = 0; i < looked && !sim->failed; i++) {
    struct sim_end *end = host->ends[(sim->event_total + i) % host->ends_used];
    check_sending(end);
    check_acknowledged(end);
    check_receiving(end);
    check_timers(end);
  }
  for (uint32_t i = 0; i < stack->heap_count && i < 1; i++) {
    if (stack->heap[i]->heap_index != i) {
      sim_violation(sim, "host %u: the timers' heap has lost its order", host->index);
    }
  }
}

static void expect_full(struct sim_host *host, const struct harp_pool *pool, const char *what) {
  if (pool->available != pool->total) {
    sim_violation(host->sim, "host %u: all is over, but %u of %u %s are still in use", host->index,
                  pool->total - pool->available, pool->total, what);
  }
}

void check_idle(struct sim_host *host) {
  struct harp_stack *stack = host->stack;
  expect_full(host, &stack->connections, "connections");
  expect_full(host, &stack->packets, "packet buffers");
  expect_full(host, &stack->references, "references");
  expect_full(host, &stack->records, "transmit records");
  expect_full(host, &stack->runs, "runs");
  if (harp_stack_next_deadline(stack) != SIM_NEVER) {
    sim_violation(host->sim, "host %u: all is over, but something is due", host->index);
  }
}
