/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for hosts after every event: the connections' counts are consistent, and acknowledged
 * data has been received. */
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "tests/sim/books.h"
#include "tests/sim/sim.h"

enum {
  ENDS_A_TIME = 8,     /* ends of a host that are checked per event, in turn */
  LONG_LIST_TURN = 64, /* events between two full walks of long lists */
};

static void expect(struct sim_end *end, const char *wrong)
{
  if (wrong) {
    sim_violation(end->flow->sim, "connection %llu, %s: false: %s",
                  (unsigned long long)end->flow->id,
                  end == &end->flow->end[0] ? "client" : "server", wrong);
  }
}

#define EXPECT(end, condition) expect(end, (condition) ? NULL : #condition)

/* Acknowledged data has been received, so the sender's memory is not released earlier. */
static void check_acknowledged(struct sim_end *end)
{
  const struct sim_end *peer = end->peer;
  uint64_t there = peer->tcp ? peer->tcp->bytes_in : peer->received;
  EXPECT(end, end->acked <= there);
}

void check_end(struct sim_end *end)
{
  if (end->tcp) {
    check_acknowledged(end);
  }
}

void check_host(struct sim_host *host)
{
  const struct harp_stack *stack = host->stack;
  struct sim *sim = host->sim;
  uint32_t looked = HARP_MIN(host->ends_used, (uint32_t)ENDS_A_TIME);
  for (uint32_t i = 0; i < looked && !sim->failed; i++) {
    struct sim_end *end = host->ends[(sim->event_total + i) % host->ends_used];
    expect(end, tcp_books(end->tcp, sim->event_total % LONG_LIST_TURN == 0));
    EXPECT(end, end->acked <= end->pushed);
    check_acknowledged(end);
  }
  for (uint32_t i = 0; i < stack->heap_count && i < 1; i++) {
    if (stack->heap[i]->heap_index != i) {
      sim_violation(sim, "host %u: the timer heap is out of order", host->index);
    }
  }
}

void check_idle(struct sim_host *host)
{
  struct harp_stack *stack = host->stack;
  const struct harp_pool *pool;
  const char *what = stack_in_use(stack, &pool);
  if (what) {
    sim_violation(host->sim, "host %u: all connections have ended, but %u of %u %s are in use",
                  host->index, pool->total - pool->available, pool->total, what);
  }
  if (harp_stack_next_deadline(stack) != SIM_NEVER) {
    sim_violation(host->sim, "host %u: all connections have ended, but a timer is due",
                  host->index);
  }
}
