/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/perf_pump.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "harp/bench/clock.h"
#include "harp/bench/signals.h"

/* NCCL's NCCL_PROGRESS_APPENDOP_FREQ: after so many passes with events, its proxy looks for new
 * operations and yields if there is none. */
enum { PASSES_PER_YIELD = 8 };

#define LONGEST_REST_NS 50000000u /* a signal is noticed after this time */

static struct pending *slot(struct pump_side *side, uint64_t index)
{
  return &side->pending[index % PUMP_MAX_OUTSTANDING];
}

static int fail(struct pump *pump, const struct pump_side *side, uint64_t index, uint64_t since_ns,
                ncclResult_t result)
{
  uint64_t now = clock_ns();
  snprintf(pump->failure, sizeof(pump->failure),
           "%s of message %llu of %llu failed after %.1f ms (%.1f ms after the pass began): %s",
           side->verb, (unsigned long long)index, (unsigned long long)side->total,
           (double)(now - since_ns) / 1e6, (double)(now - pump->began_ns) / 1e6,
           netapi_result_name(result));
  return -1;
}

static int stalled(struct pump *pump, uint64_t since_ns)
{
  const struct pump_side *side = pump->receive.done < pump->receive.posted ? &pump->receive
                                                                           : &pump->send;
  const struct pending *oldest = &side->pending[side->done % PUMP_MAX_OUTSTANDING];
  if (side->done < side->posted) {
    snprintf(pump->failure, sizeof(pump->failure),
             "%s of message %llu of %llu (%zu bytes) is not complete after %.1f ms: no progress "
             "within --timeout",
             side->verb, (unsigned long long)side->done, (unsigned long long)side->total,
             oldest->size, (double)(clock_ns() - oldest->posted_ns) / 1e6);
  } else {
    snprintf(pump->failure, sizeof(pump->failure),
             "%s of message %llu of %llu: the plugin accepted no request for %.1f ms", side->verb,
             (unsigned long long)side->posted, (unsigned long long)side->total,
             (double)(clock_ns() - since_ns) / 1e6);
  }
  return -1;
}

/* Returns true if a request of the pump is not complete. */
static bool waits(const struct pump *pump)
{
  return pump->receive.done < pump->receive.posted || pump->send.done < pump->send.posted;
}

/* Puts the failure of a pump into the first one, with the number of its channel. */
static int report(struct pump *first, const struct pump *failed, unsigned count)
{
  char text[PUMP_FAILURE];
  memcpy(text, failed->failure, sizeof(text));
  if (count > 1) {
    snprintf(first->failure, sizeof(first->failure), "channel %u: %.*s", failed->channel,
             PUMP_FAILURE - 32, text);
  }
  return -1;
}

static int interrupted(struct pump *pump)
{
  snprintf(pump->failure, sizeof(pump->failure), "a signal ended the pass after %.1f ms",
           (double)(clock_ns() - pump->began_ns) / 1e6);
  return -1;
}

/* Returns the time at which the limit allows the side's next request. */
static uint64_t allowed_ns(const struct pump *pump, const struct pump_side *side)
{
  return pump->began_ns + (uint64_t)((double)side->bytes_posted / pump->bytes_per_ns);
}

/* The limit holds back the sender. A pump that rests holds back its receives, too: both ranks then
 * begin each message at the same time, as ranks do that call a collective after some computing. */
static bool held_back(const struct pump *pump, const struct pump_side *side)
{
  if (pump->bytes_per_ns == 0 || (side == &pump->receive && !pump->rests)) {
    return false;
  }
  return clock_ns() < allowed_ns(pump, side);
}

/* Posts at most one message. 1: posted; 0: not possible now; -1: failed. */
static int post_send(struct pump *pump)
{
  struct pump_side *side = &pump->send;
  struct transfer transfer;
  if (side->posted == side->total || side->posted - side->done >= pump->outstanding ||
      held_back(pump, side) || !pump->callbacks->send(pump->user, side->posted, &transfer)) {
    return 0;
  }
  struct pending *pending = slot(side, side->posted);
  pending->posted_ns = clock_ns();
  pending->size = transfer.size;
  ncclResult_t result = pump->api->isend(side->comm, transfer.data, transfer.size,
                                         transfer.region->send_mhandle, &pending->request);
  if (result != ncclSuccess) {
    return fail(pump, side, side->posted, pending->posted_ns, result);
  }
  if (!pending->request) {
    return 0;
  }
  side->bytes_posted += transfer.size;
  side->posted++;
  return 1;
}

static int post_receive(struct pump *pump)
{
  struct pump_side *side = &pump->receive;
  struct transfer transfer;
  if (side->posted == side->total || side->posted - side->done >= pump->outstanding ||
      held_back(pump, side) || !pump->callbacks->receive(pump->user, side->posted, &transfer)) {
    return 0;
  }
  struct pending *pending = slot(side, side->posted);
  pending->posted_ns = clock_ns();
  pending->size = transfer.size;
  pending->request = NULL; /* its completion is needed */
  ncclResult_t result = pump->api->irecv(side->comm, transfer.data, transfer.size,
                                         transfer.region->receive_mhandle, &pending->request);
  if (result != ncclSuccess) {
    return fail(pump, side, side->posted, pending->posted_ns, result);
  }
  if (!pending->request) {
    return 0;
  }
  side->bytes_posted += transfer.size;
  side->posted++;
  return 1;
}

/* Tests the oldest message of a side. 1: complete; 0: not yet; -1: failed. */
static int test_oldest(struct pump *pump, struct pump_side *side, int *size)
{
  int done = 0;
  if (side->done == side->posted) {
    return 0;
  }
  struct pending *oldest = slot(side, side->done);
  ncclResult_t result = pump->api->test(oldest->request, &done, size);
  if (result != ncclSuccess) {
    return fail(pump, side, side->done, oldest->posted_ns, result);
  }
  if (done) {
    side->done++;
  }
  return done != 0;
}

static bool is_warm(const struct pump *pump)
{
  return pump->send.done >= pump->warm_send && pump->receive.done >= pump->warm_receive;
}

static bool is_done(const struct pump *pump)
{
  return pump->send.done == pump->send.total && pump->receive.done == pump->receive.total;
}

static bool all(bool (*holds)(const struct pump *), struct pump *const *pumps, unsigned count)
{
  for (unsigned i = 0; i < count; i++) {
    if (!holds(pumps[i])) {
      return false;
    }
  }
  return true;
}

/* Posts a message or tests the oldest one. Returns the number of events, or -1. */
static int turn_send(struct pump *pump)
{
  int size = 0, posted = post_send(pump);
  if (posted) {
    return posted;
  }
  int sent = test_oldest(pump, &pump->send, &size);
  if (sent > 0) {
    pump->callbacks->sent(pump->user, pump->send.done - 1);
  }
  return sent;
}

static int turn_receive(struct pump *pump)
{
  int size = 0, posted = post_receive(pump);
  if (posted) {
    return posted;
  }
  int received = test_oldest(pump, &pump->receive, &size);
  if (received > 0) {
    pump->callbacks->received(pump->user, pump->receive.done - 1, (size_t)size);
  }
  return received;
}

/* One pass over both sides. A side that posts a request tests none in the same pass, as in NCCL's
 * proxy. Returns the number of events, or -1. */
static int turn(struct pump *pump)
{
  int sends = turn_send(pump);
  if (sends < 0) {
    return -1;
  }
  int receives = turn_receive(pump);
  return receives < 0 ? -1 : sends + receives;
}

/* One round over all channels. Returns the number of events, or -1 with the failure in the first
 * pump. */
static int turn_all(struct pump *const *pumps, unsigned count)
{
  int events = 0;
  for (unsigned i = 0; i < count; i++) {
    int more = turn(pumps[i]);
    if (more < 0) {
      return report(pumps[0], pumps[i], count);
    }
    events += more;
  }
  return events;
}

/* Blames the first channel that waits for a request. */
static int all_stalled(struct pump *const *pumps, unsigned count, uint64_t since_ns)
{
  unsigned slow = 0;
  for (unsigned i = count; i-- > 0;) {
    if (waits(pumps[i])) {
      slow = i;
    }
  }
  stalled(pumps[slow], since_ns);
  return report(pumps[0], pumps[slow], count);
}

/* Sleeps until the limit of the offered load allows the next request. NCCL's progress thread
 * sleeps, too, while it has no operation. Yields only if a request is under way. */
static void rest(struct pump *const *pumps, unsigned count)
{
  uint64_t until = clock_ns() + LONGEST_REST_NS;
  for (unsigned i = 0; i < count; i++) {
    const struct pump *pump = pumps[i];
    if (waits(pump)) {
      sched_yield();
      return;
    }
    for (int j = 0; j < 2; j++) {
      const struct pump_side *side = j ? &pump->receive : &pump->send;
      if (side->posted < side->total && allowed_ns(pump, side) < until) {
        until = allowed_ns(pump, side);
      }
    }
  }
  struct timespec at = {.tv_sec = (time_t)(until / 1000000000u),
                        .tv_nsec = (long)(until % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* Idle rounds follow each other within microseconds, or within milliseconds on a busy host. A
 * longer gap means that the process was stopped. */
#define PAUSE_NS 1000000000u

/* The wait of all channels for an event. */
struct wait {
  uint64_t since_ns; /* 0: the last pass had events */
  uint64_t idle_ns;  /* the last idle pass */
};

/* After an idle pass: returns whether the wait is longer than the timeout. Only idle passes read
 * the clock. The first one starts the wait. */
static bool timed_out(struct wait *wait, uint64_t timeout_ns)
{
  uint64_t now = clock_ns();
  if (!wait->since_ns) {
    wait->since_ns = now;
  } else if (now - wait->idle_ns > PAUSE_NS) {
    wait->since_ns += now - wait->idle_ns; /* this process was stopped, so it is not a stall */
  }
  wait->idle_ns = now;
  return now - wait->since_ns > timeout_ns;
}

int pump_run(struct pump *const *pumps, unsigned count)
{
  struct pump *first = pumps[0];
  uint64_t began_ns = clock_ns();
  for (unsigned i = 0; i < count; i++) {
    pumps[i]->began_ns = began_ns;
  }
  first->start_ns = 0;
  struct wait wait = {.since_ns = began_ns, .idle_ns = began_ns};
  unsigned busy_passes = 0;
  while (!all(is_done, pumps, count)) {
    if (!first->start_ns && all(is_warm, pumps, count)) {
      first->start_ns = clock_ns();
    }
    if (signals_stop()) {
      return interrupted(first);
    }
    int events = turn_all(pumps, count);
    if (events < 0) {
      return -1;
    }
    if (events) {
      wait.since_ns = 0;
      if (++busy_passes % PASSES_PER_YIELD == 0) {
        sched_yield();
      }
      continue;
    }
    busy_passes = 0;
    if (timed_out(&wait, first->timeout_ns)) {
      return all_stalled(pumps, count, wait.since_ns);
    }
    if (first->rests) {
      rest(pumps, count);
    } else {
      sched_yield();
    }
  }
  first->end_ns = clock_ns();
  if (!first->start_ns) {
    first->start_ns = began_ns; /* there was no message */
  }
  return 0;
}
