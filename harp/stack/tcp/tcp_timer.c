/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers. One heap orders the connections by their earliest timer. A later deadline, which every
 * ACK sets, does not change the heap: the entry keeps its old, earlier key until it reaches the
 * top.
 */
#include "harp/stack/tcp/tcp_timer.h"

#include "harp/stack.h"
#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_shared_ack.h"
#include "harp/stack/tcp/tcp_times.h"
#include "harp/stack/tcp/tcp_wait.h"

static void heap_put(struct harp_stack *stack, uint32_t index, struct harp_tcp *tcp)
{
  stack->heap[index] = tcp;
  tcp->heap_index = index;
}

static void sift_up(struct harp_stack *stack, uint32_t index, struct harp_tcp *tcp)
{
  while (index > 0 && stack->heap[(index - 1) / 2]->heap_key > tcp->heap_key) {
    heap_put(stack, index, stack->heap[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  heap_put(stack, index, tcp);
}

static void sift_down(struct harp_stack *stack, uint32_t index, struct harp_tcp *tcp)
{
  for (;;) {
    uint32_t child = 2 * index + 1;
    if (child >= stack->heap_count) {
      break;
    }
    if (child + 1 < stack->heap_count &&
        stack->heap[child + 1]->heap_key < stack->heap[child]->heap_key) {
      child++;
    }
    if (stack->heap[child]->heap_key >= tcp->heap_key) {
      break;
    }
    heap_put(stack, index, stack->heap[child]);
    index = child;
  }
  heap_put(stack, index, tcp);
}

void tcp_timers_remove(struct harp_tcp *tcp)
{
  struct harp_stack *stack = tcp->stack;
  for (int i = 0; i < TIMERS; i++) {
    tcp->timers[i] = TIMER_OFF;
  }
  if (tcp->heap_index == UINT32_MAX) {
    return;
  }
  uint32_t index = tcp->heap_index;
  struct harp_tcp *last = stack->heap[--stack->heap_count];
  tcp->heap_index = UINT32_MAX;
  if (last != tcp) {
    sift_up(stack, index, last);
    sift_down(stack, last->heap_index, last);
  }
}

void tcp_timer_set(struct harp_tcp *tcp, enum harp_timer timer, uint64_t when)
{
  tcp->timers[timer] = when;
  if (tcp->heap_index == UINT32_MAX) {
    if (when != TIMER_OFF) {
      tcp->heap_key = when;
      sift_up(tcp->stack, tcp->stack->heap_count++, tcp);
    }
  } else if (when < tcp->heap_key) {
    tcp->heap_key = when;
    sift_up(tcp->stack, tcp->heap_index, tcp);
  }
}

static uint64_t earliest(const struct harp_tcp *tcp)
{
  uint64_t when = TIMER_OFF;
  for (int i = 0; i < TIMERS; i++) {
    when = HARP_MIN(when, tcp->timers[i]);
  }
  return when;
}

/* Updates the key of the top entry until it equals the earliest timer. */
uint64_t tcp_timers_next(struct harp_stack *stack)
{
  while (stack->heap_count) {
    struct harp_tcp *top = stack->heap[0];
    uint64_t when = earliest(top);
    if (when == top->heap_key) {
      return when;
    }
    if (when == TIMER_OFF) {
      tcp_timers_remove(top);
    } else {
      top->heap_key = when;
      sift_down(stack, 0, top);
    }
  }
  return TIMER_OFF;
}

void tcp_arm_rto(struct harp_tcp *tcp)
{
  const struct harp_stack_config *config = &tcp->stack->config;
  uint64_t rto;
  if (tcp->state == TCP_SYN_SENT || tcp->state == TCP_SYN_RECV) {
    rto = config->rto_initial_us * NS_PER_US
          << HARP_MIN(tcp->syn_transmits - 1, (int)TCP_BACKOFF_MAX);
    if (tcp->user_timeout_ms) {
      rto = HARP_MIN(rto, HARP_MAX(SYN_RTO_MAX, config->rto_initial_us * NS_PER_US));
    }
  } else if (tcp->snd.una != tcp->snd.end + tcp->snd.fin_sent + tcp->snd.fin_queued) {
    rto = tcp->rtt.rto << HARP_MIN(tcp->backoff, (int)TCP_BACKOFF_MAX);
    if (tcp->user_timeout_ms) {
      /* A peer that returns shortly before the user timeout must get a retransmission in time. */
      rto = HARP_MIN(rto, HARP_MAX(tcp->user_timeout_ms * NS_PER_MS / 8, tcp->rtt.rto));
    }
    if (tcp->harp_peer) {
      /* A HARP peer may be stopped for most of a minute. A short RTO resumes the transfer soon
       * after it continues. */
      rto = HARP_MIN(rto, HARP_MAX(HARP_PEER_RTO_MAX, tcp->rtt.rto));
    }
  } else {
    tcp_timer_stop(tcp, TIMER_RTO);
    tcp_wait_for(tcp, TCP_WAIT_NOTHING);
    return;
  }
  rto = HARP_MIN(rto, config->rto_max_us * NS_PER_US);
  tcp_timer_set(tcp, TIMER_RTO, tcp->stack->now + rto);
}

void tcp_arm_tail_probe(struct harp_tcp *tcp)
{
  /* Only the persist timer sends while the window is closed. */
  bool useful = tcp->sack && tcp->recovery == RECOVERY_NONE && tcp->flight.oldest && tcp->snd.wnd &&
                !tcp->flight.sacked_out && !tcp->flight.lost_out && !tcp->tlp.outstanding &&
                tcp->rtt.srtt;
  if (!useful) {
    tcp_timer_stop(tcp, TIMER_TLP);
    return;
  }
  uint64_t wait = HARP_MAX(2 * tcp->rtt.srtt, tcp->harp_peer ? PROBE_FLOOR_HARP_PEER : PROBE_FLOOR);
  if (tcp_shared_ack_ends(tcp, tcp->snd.nxt)) {
    /* The peer may delay the ACK. Its worker sends it if the callers have stopped to poll. */
    wait = 2 * tcp->rtt.srtt + PROBE_FLOOR_HARP_PEER;
  }
  if (!tcp->harp_peer && tcp->snd.nxt - tcp->snd.una <= tcp->snd.mss) {
    wait += PEER_DELAYED_ACK;
  }
  uint64_t when = tcp->stack->now + wait;
  tcp_timer_stop(tcp, TIMER_RACK); /* RFC 8985, 7.2: one of the two at a time */
  tcp_timer_set(tcp, TIMER_TLP, HARP_MIN(when, tcp->timers[TIMER_RTO]));
}
