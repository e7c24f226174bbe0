/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of runs: what has been received beyond holes. It lies in a packet
 * buffer, which a connection has only while there is a hole, so that holes are
 * bounded and paid for like the bytes behind them. A run keeps its place in the
 * table. One list names the places by sequence, the free ones behind those in
 * use: it is searched by bisection, and to put a run in between some bytes move.
 * Another links the places by when their runs last grew.
 */
#include "harp/stack/stack_state.h"

static struct harp_runs *begin(struct harp_tcp *tcp) {
  struct harp_runs *runs = pool_get(&tcp->stack->packets);
  if (runs) {
    runs->count = 0;
    runs->newest = TCP_NO_RUN;
    for (uint8_t i = 0; i < TCP_MAX_RUNS; i++) {
      runs->order[i] = i;
    }
  }
  return runs;
}

/* The neighbours in time of the run at a place learn of each other. */
static void leave_time(struct harp_runs *runs, uint8_t place) {
  uint8_t newer = runs->newer[place], older = runs->older[place];
  if (older != TCP_NO_RUN) {
    runs->newer[older] = newer;
  }
  *(newer != TCP_NO_RUN ? &runs->older[newer] : &runs->newest) = older;
}

static void join_time(struct harp_runs *runs, uint8_t place) {
  runs->newer[place] = TCP_NO_RUN;
  runs->older[place] = runs->newest;
  if (runs->newest != TCP_NO_RUN) {
    runs->newer[runs->newest] = place;
  }
  runs->newest = place;
}

static struct harp_run *run_at(struct harp_runs *runs, uint32_t index) {
  return &runs->run[runs->order[index]];
}

struct harp_run *tcp_run(const struct harp_tcp *tcp, uint32_t index) {
  struct harp_runs *runs = tcp->runs;
  return runs && index < runs->count ? run_at(runs, index) : NULL;
}

uint32_t tcp_runs_before(const struct harp_tcp *tcp, uint32_t seq) {
  struct harp_runs *runs = tcp->runs;
  if (!runs) {
    return 0;
  }
  uint32_t low = 0, high = runs->count;
  uint32_t middle = high - 1; /* behind one loss, all that comes goes to the last run */
  uint64_t steps = 0;
  for (; low < high; steps++) {
    bool before = seq_le(run_at(runs, middle)->start, seq);
    *(before ? &low : &high) = middle + before;
    middle = (low + high) / 2;
  }
  COUNT_N(tcp->stack, tcp_reassembly_steps, steps);
  return low;
}

struct harp_run *tcp_run_insert(struct harp_tcp *tcp, uint32_t index, uint32_t seq,
                                uint32_t keep) {
  struct harp_runs *runs = tcp->runs;
  if (!runs && tcp->stack->packets.available > keep) {
    runs = tcp->runs = begin(tcp);
  }
  if (!runs || runs->count == TCP_MAX_RUNS) {
    return NULL;
  }
  uint8_t *at = runs->order + index;
  uint8_t place = runs->order[runs->count];
  memmove(at + 1, at, runs->count++ - index);
  *at = place;
  struct harp_run *run = &runs->run[place];
  *run = (struct harp_run){.start = seq, .end = seq};
  join_time(runs, place);
  tcp->fin_newest = false;
  return run;
}

void tcp_run_touch(struct harp_tcp *tcp, const struct harp_run *run) {
  uint8_t place = (uint8_t)(run - tcp->runs->run);
  leave_time(tcp->runs, place);
  join_time(tcp->runs, place);
  tcp->fin_newest = false;
}

void tcp_run_remove(struct harp_tcp *tcp, uint32_t index) {
  struct harp_runs *runs = tcp->runs;
  uint8_t *at = runs->order + index;
  uint8_t place = *at;
  leave_time(runs, place);
  memmove(at, at + 1, --runs->count - index);
  runs->order[runs->count] = place;
  if (runs->count == 0) {
    tcp->runs = NULL;
    pool_put(&tcp->stack->packets, runs);
  }
}

const struct harp_run *tcp_run_newest(const struct harp_tcp *tcp) {
  return tcp->runs ? &tcp->runs->run[tcp->runs->newest] : NULL;
}

const struct harp_run *tcp_run_older(const struct harp_tcp *tcp, const struct harp_run *run) {
  uint8_t older = tcp->runs->older[run - tcp->runs->run];
  return older != TCP_NO_RUN ? &tcp->runs->run[older] : NULL;
}
