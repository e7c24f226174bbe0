/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HyStart++ (RFC 9406): the first slow start ends when the RTT grows, before the queue overflows.
 * Conservative slow start then continues at a quarter of the speed for some rounds. It returns to
 * slow start if the growth was jitter.
 *
 * Three differences from the RFC, for hosts in one datacenter:
 *   - The smallest growth that counts is 1 ms, because most queues there hold no more.
 *   - Slow start ends within a round if a queue has stood for half a millisecond. A queue stands
 *     if every RTT sample exceeds the minimum RTT by half of it and by 1 ms. A cwnd that doubles
 *     each round overflows such a queue before the round's minimum shows it. A host that did not
 *     run for a while also sees late samples, but all at one time.
 *   - One ACK may add any amount, because between HARP hosts one ACK covers a whole burst.
 */
#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"

enum {
  ROUND_SAMPLES = 8,       /* N_RTT_SAMPLE: samples that make a round's minimum valid */
  MIN_GROWTH_MS = 1,       /* MIN_RTT_THRESH: 4 in the RFC */
  MAX_GROWTH_MS = 16,      /* MAX_RTT_THRESH */
  GROWTH_DIVISOR = 8,      /* MIN_RTT_DIVISOR */
  SPEED_DIVISOR = 4,       /* CSS_GROWTH_DIVISOR */
  CONSERVATIVE_ROUNDS = 5, /* CSS_ROUNDS */
  STANDING_US = 500,       /* longer than the time in which a late host catches up */
};

static void begin_round(struct harp_tcp *tcp)
{
  struct harp_hystart *hystart = &tcp->hystart;
  hystart->round_end = tcp->snd.nxt;
  hystart->last_min = hystart->samples ? hystart->round_min : UINT64_MAX;
  hystart->samples = 0;
}

static void sample(struct harp_hystart *hystart, uint64_t rtt)
{
  hystart->round_min = hystart->samples ? HARP_MIN(hystart->round_min, rtt) : rtt;
  if (hystart->samples < ROUND_SAMPLES) {
    hystart->samples++;
  }
}

static bool has_grown(const struct harp_hystart *hystart)
{
  uint64_t growth = hystart->last_min / GROWTH_DIVISOR;
  growth = HARP_MIN(HARP_MAX(growth, MIN_GROWTH_MS * NS_PER_MS), MAX_GROWTH_MS * NS_PER_MS);
  return hystart->last_min != UINT64_MAX && hystart->round_min >= hystart->last_min + growth;
}

/* Enters conservative slow start, or returns to slow start, once the round has enough samples. */
static void judge(struct harp_hystart *hystart)
{
  if (hystart->samples < ROUND_SAMPLES) {
    return;
  }
  if (hystart->rounds == 0 && has_grown(hystart)) {
    hystart->baseline = hystart->round_min;
    hystart->rounds = 1;
  } else if (hystart->rounds && hystart->round_min < hystart->baseline) {
    hystart->rounds = 0; /* it was jitter */
  }
}

/* Whether all samples have exceeded the minimum RTT by half of it and by 1 ms for STANDING_US. */
static bool standing_queue(struct harp_tcp *tcp, uint64_t rtt)
{
  struct harp_hystart *hystart = &tcp->hystart;
  uint64_t growth = HARP_MAX(tcp->rtt.min / 2, MIN_GROWTH_MS * NS_PER_MS);
  if (rtt < tcp->rtt.min + growth) {
    hystart->late = 0;
    return false;
  }
  if (hystart->late == 0) {
    hystart->late_since = tcp->stack->now;
  }
  if (hystart->late < ROUND_SAMPLES) {
    hystart->late++;
  }
  return hystart->late == ROUND_SAMPLES &&
         tcp->stack->now - hystart->late_since >= STANDING_US * NS_PER_US;
}

bool hystart_on_ack(struct harp_tcp *tcp, uint64_t rtt)
{
  struct harp_hystart *hystart = &tcp->hystart;
  /* round_end may be so old that sequence numbers have wrapped since: begin a new round. */
  if (!hystart->begun || seq_gt(hystart->round_end, tcp->snd.nxt)) {
    hystart->begun = true;
    begin_round(tcp);
  }
  if (rtt) {
    if (standing_queue(tcp, rtt)) {
      return false;
    }
    sample(hystart, rtt);
    judge(hystart);
  }
  if (seq_ge(tcp->snd.una, hystart->round_end)) {
    begin_round(tcp);
    return !hystart->rounds || ++hystart->rounds <= CONSERVATIVE_ROUNDS;
  }
  return true;
}

uint32_t hystart_growth(const struct harp_hystart *hystart, uint32_t acked)
{
  return hystart->rounds ? acked / SPEED_DIVISOR : acked;
}
