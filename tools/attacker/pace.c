/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/attacker/attacker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

enum { BATCH = 64, TICK_NS = 1000000, BEHIND_TICKS = 5 };

volatile sig_atomic_t flood_stop;

uint64_t flood_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* SplitMix64: every run sends the same frames. */
uint64_t flood_random(struct flood *flood)
{
  uint64_t z = flood->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Visitors wait in a ring, ordered by the time of their last frames. Their next frames have the
 * same order, except between a first and a second frame. An index into the ring is also the
 * index into flood->visitors. */
struct crowd {
  uint64_t first, next; /* modulo FLOOD_VISITORS */
};

static struct visitor *welcome(struct flood *flood, struct crowd *crowd)
{
  uint32_t place = (uint32_t)(crowd->next++ % FLOOD_VISITORS);
  struct visitor *visitor = &flood->visitors[place];
  uint16_t port = (uint16_t)(1024 + flood->visits++ % 60000);
  flood->count.connections += flood->to == flood->victim;
  *visitor = (struct visitor){.port = port, .seq = (uint32_t)flood_random(flood)};
  flood->by_port[port] = place + 1;
  return visitor;
}

/* Returns a visitor that the victim has answered and that has sent nothing since; NULL: none. */
static struct visitor *answered(struct flood *flood)
{
  while (flood->answered_count > 0) {
    struct visitor *visitor = &flood->visitors[flood->answered[--flood->answered_count]];
    if (visitor->answered && visitor->step == 1) {
      return visitor;
    }
  }
  return NULL;
}

/* Returns the visitor that sends the next frame; NULL: none yet. A visitor whose wait is over
 * moves to the end of the ring. */
static struct visitor *whose_turn(struct flood *flood, struct crowd *crowd,
                                  const struct attack *attack, uint64_t now)
{
  struct visitor *found = attack->steps > 1 ? answered(flood) : NULL;
  if (found) {
    return found;
  }
  while (crowd->first < crowd->next &&
         flood->visitors[crowd->first % FLOOD_VISITORS].step == attack->steps) {
    crowd->first++;
  }
  struct visitor *oldest = &flood->visitors[crowd->first % FLOOD_VISITORS];
  if (crowd->first < crowd->next && oldest->due_ns <= now) {
    uint32_t place = (uint32_t)(crowd->next % FLOOD_VISITORS);
    struct visitor *moved = &flood->visitors[place];
    crowd->first++;
    crowd->next++;
    *moved = *oldest;
    flood->by_port[moved->port] = place + 1;
    return moved;
  }
  return crowd->next - crowd->first < FLOOD_VISITORS - 1 ? welcome(flood, crowd) : NULL;
}

static int send_frames(struct flood *flood, struct crowd *crowd, const struct attack *attack,
                       uint64_t quota, uint64_t now)
{
  static uint8_t frames[BATCH][FLOOD_FRAME];
  struct iovec parts[BATCH];
  while (quota > 0) {
    unsigned count = 0;
    for (; count < BATCH && count < quota; count++) {
      struct visitor *visitor = whose_turn(flood, crowd, attack, now);
      if (!visitor) {
        break;
      }
      parts[count].iov_base = frames[count];
      parts[count].iov_len = attack->frame(flood, visitor, frames[count]);
      visitor->due_ns = now + (visitor->step ? FLOOD_NEXT_NS : FLOOD_ANSWER_NS);
      visitor->step++;
    }
    if (count == 0) {
      return 0;
    }
    int sent = tx_send(flood, parts, count);
    if (sent < 0) {
      return sent;
    }
    flood->count.frames += (unsigned)sent;
    quota -= count;
  }
  return 0;
}

/* A phase with another address drops all visitors, with their unfinished connections. */
static void begin_phase(struct flood *flood, struct crowd *crowd, uint64_t elapsed_ns)
{
  bool odd = flood->nobody && elapsed_ns / (flood->phase_ms * 1000000) % 2;
  uint32_t to = odd ? flood->nobody : flood->victim;
  if (to != flood->to) {
    *crowd = (struct crowd){0};
    flood->answered_count = 0;
    memset(flood->by_port, 0, sizeof flood->by_port);
  }
  flood->to = to;
}

static void report(const struct flood *flood, uint64_t took_ns)
{
  printf("{\"frames\": %" PRIu64 ", \"seconds\": %.3f, \"connections\": %" PRIu64
         ", \"answered\": %" PRIu64 ", \"resets\": %" PRIu64 ", \"arp_answers\": %" PRIu64 "}\n",
         flood->count.frames, (double)took_ns / 1e9, flood->count.connections,
         flood->count.answered, flood->count.resets, flood->count.arp);
  fflush(stdout);
}

/* Sends frames at every tick. Missed frames are dropped after a delay of more than a few ticks,
 * which a busy machine causes. The rate is an upper bound, and the report has the real number. */
int flood_run(struct flood *flood, const struct attack *attack)
{
  struct crowd crowd = {0};
  uint64_t began = flood_now(), end = began + flood->ms * 1000000, tick = began;
  uint64_t owed = 0; /* frames, times 10^9 */
  int result = 0;
  printf("ready %" PRIu64 "\n", began);
  fflush(stdout);
  while (!flood_stop && result == 0 && tick < end) {
    uint64_t now = flood_now(), passed = now - tick;
    tick = now;
    owed += (passed < BEHIND_TICKS * TICK_NS ? passed : BEHIND_TICKS * TICK_NS) * flood->rate;
    tx_open(flood);
    begin_phase(flood, &crowd, now - began);
    result = send_frames(flood, &crowd, attack, owed / 1000000000u, now);
    owed %= 1000000000u;
    tx_wait(flood, now + TICK_NS);
  }
  report(flood, flood_now() - began);
  return result;
}
