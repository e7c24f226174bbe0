/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/perf_pump.h"

#include <sched.h>
#include <stdio.h>

#include "harp/bench/clock.h"
#include "harp/bench/signals.h"

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
  if (side->done < side->posted)
    snprintf(pump->failure, sizeof(pump->failure),
             "%s of message %llu of %llu (%zu bytes) is not complete after %.1f ms: no progress "
             "within --timeout",
             side->verb, (unsigned long long)side->done, (unsigned long long)side->total,
             oldest->size, (double)(clock_ns() - oldest->posted_ns) / 1e6);
  else
    snprintf(pump->failure, sizeof(pump->failure),
             "%s of message %llu of %llu: the plugin accepted no request for %.1f ms", side->verb,
             (unsigned long long)side->posted, (unsigned long long)side->total,
             (double)(clock_ns() - since_ns) / 1e6);
  return -1;
}

static int interrupted(struct pump *pump)
{
  snprintf(pump->failure, sizeof(pump->failure), "a signal ended the pass after %.1f ms",
           (double)(clock_ns() - pump->began_ns) / 1e6);
  return -1;
}

static bool held_back(const struct pump *pump)
{
  if (pump->bytes_per_ns == 0)
    return false;
  return (double)pump->bytes_posted > (double)(clock_ns() - pump->began_ns) * pump->bytes_per_ns;
}

/* Posts at most one message. 1: posted; 0: not possible now; -1: failed. */
static int post_send(struct pump *pump)
{
  struct pump_side *side = &pump->send;
  struct transfer transfer;
  if (side->posted == side->total || side->posted - side->done >= pump->outstanding ||
      held_back(pump) || !pump->callbacks->send(pump->user, side->posted, &transfer))
    return 0;
  struct pending *pending = slot(side, side->posted);
  pending->posted_ns = clock_ns();
  pending->size = transfer.size;
  ncclResult_t result = pump->api->isend(side->comm, transfer.data, transfer.size,
                                         transfer.region->send_mhandle, &pending->request);
  if (result != ncclSuccess)
    return fail(pump, side, side->posted, pending->posted_ns, result);
  if (!pending->request)
    return 0;
  pump->bytes_posted += transfer.size;
  side->posted++;
  return 1;
}

static int post_receive(struct pump *pump)
{
  struct pump_side *side = &pump->receive;
  struct transfer transfer;
  if (side->posted == side->total || side->posted - side->done >= pump->outstanding ||
      !pump->callbacks->receive(pump->user, side->posted, &transfer))
    return 0;
  struct pending *pending = slot(side, side->posted);
  pending->posted_ns = clock_ns();
  pending->size = transfer.size;
  ncclResult_t result = pump->api->irecv(side->comm, transfer.data, transfer.size,
                                         transfer.region->receive_mhandle, &pending->request);
  if (result != ncclSuccess)
    return fail(pump, side, side->posted, pending->posted_ns, result);
  if (!pending->request)
    return 0;
  side->posted++;
  return 1;
}

/* Tests the oldest message of a side. 1: complete; 0: not yet; -1: failed. */
static int test_oldest(struct pump *pump, struct pump_side *side, int *size)
{
  int done = 0;
  if (side->done == side->posted)
    return 0;
  struct pending *oldest = slot(side, side->done);
  ncclResult_t result = pump->api->test(oldest->request, &done, size);
  if (result != ncclSuccess)
    return fail(pump, side, side->done, oldest->posted_ns, result);
  if (done)
    side->done++;
  return done != 0;
}

static void start_clock_when_warm(struct pump *pump)
{
  if (!pump->start_ns && pump->send.done >= pump->warm_send &&
      pump->receive.done >= pump->warm_receive)
    pump->start_ns = clock_ns();
}

/* One round over both sides, like NCCL's proxy. Returns the number of events, or -1. */
static int turn(struct pump *pump)
{
  int size = 0;
  int posted_send = post_send(pump);
  if (posted_send < 0)
    return -1;
  int sent = test_oldest(pump, &pump->send, &size);
  if (sent < 0)
    return -1;
  if (sent)
    pump->callbacks->sent(pump->user, pump->send.done - 1);
  int posted_receive = post_receive(pump);
  if (posted_receive < 0)
    return -1;
  int received = test_oldest(pump, &pump->receive, &size);
  if (received < 0)
    return -1;
  if (received)
    pump->callbacks->received(pump->user, pump->receive.done - 1, (size_t)size);
  if (sent || received)
    start_clock_when_warm(pump);
  return posted_send + sent + posted_receive + received;
}

/* Idle rounds follow each other within microseconds, or within milliseconds on a busy host. A
 * longer gap means that the process was stopped. */
#define PAUSE_NS 1000000000u

int pump_run(struct pump *pump)
{
  pump->began_ns = clock_ns();
  pump->start_ns = 0;
  uint64_t progress_ns = pump->began_ns, idle_ns = pump->began_ns;
  start_clock_when_warm(pump);
  while (pump->send.done < pump->send.total || pump->receive.done < pump->receive.total) {
    if (signals_stop())
      return interrupted(pump);
    int events = turn(pump);
    if (events < 0)
      return -1;
    if (events) {
      progress_ns = 0;
      continue;
    }
    /* Only idle rounds read the clock. The first one starts the wait. */
    uint64_t now = clock_ns();
    if (!progress_ns)
      progress_ns = now;
    else if (now - idle_ns > PAUSE_NS)
      progress_ns += now - idle_ns; /* this process was stopped, so it is not a stall */
    idle_ns = now;
    if (now - progress_ns > pump->timeout_ns)
      return stalled(pump, progress_ns);
    sched_yield();
  }
  pump->end_ns = clock_ns();
  return 0;
}
