/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines. Every connection stands in one heap at its earliest timer. Moving
 * a timer to later, which every acknowledgement does, costs nothing: the heap
 * keeps the old, earlier key until that comes to the top.
 */
#include "harp/stack/stack_state.h"

enum {
  SYN_RETRIES = 6,
  DATA_RETRIES = 15, /* with backoff, minutes: RFC 1122, 4.2.3.5 R2 */
  MAX_SHIFT = 16,
};
#define HANDSHAKE_LEAST \
  (63 * NS_PER_S) /* its peer may be stopped; as long as Linux's SYN-ACKs take */
#define SYN_RTO_MAX \
  (2 * NS_PER_S) /* of a connection with a user timeout: its peer may be stopped */
#define HARP_PEER_RTO_MAX (500 * NS_PER_MS) /* of a backed-off timeout between HARP hosts */

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

/* Brings the top's key up to date until it is true. */
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
    rto = config->rto_initial_us * NS_PER_US << HARP_MIN(tcp->syn_transmits - 1, (int)MAX_SHIFT);
    if (tcp->user_timeout_ms) {
      rto = HARP_MIN(rto, HARP_MAX(SYN_RTO_MAX, config->rto_initial_us * NS_PER_US));
    }
  } else if (tcp->records || tcp->snd_nxt != tcp->snd_end + tcp->fin_sent) {
    rto = tcp->rto << HARP_MIN(tcp->backoff, (int)MAX_SHIFT);
    if (tcp->user_timeout_ms) {
      /* A peer that comes back shortly before the timeout must hear of it in time. */
      rto = HARP_MIN(rto, HARP_MAX(tcp->user_timeout_ms * NS_PER_MS / 8, tcp->rto));
    }
    if (tcp->harp_peer) {
      /* A HARP peer may be stopped for most of a minute: it goes on soon after it is back. */
      rto = HARP_MIN(rto, HARP_MAX(HARP_PEER_RTO_MAX, tcp->rto));
    }
  } else {
    tcp_timer_set(tcp, TIMER_RETRANSMIT, TIMER_OFF);
    if (tcp->busy_since) {
      tcp->busy_time += tcp->stack->now - tcp->busy_since;
      tcp->busy_since = 0;
    }
    return;
  }
  rto = HARP_MIN(rto, config->rto_max_us * NS_PER_US);
  tcp_timer_set(tcp, TIMER_RETRANSMIT, tcp->stack->now + rto);
}

static void give_up(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_timeouts);
  tcp_send_reset(tcp);
  tcp_finish(tcp, -ETIMEDOUT);
}

/* first: none before it since something was last acknowledged. */
static void count_timeout(struct harp_tcp *tcp, bool first)
{
  tcp->timeouts++;
  tcp->timeout_recoveries += first;
}

static void syn_timer(struct harp_tcp *tcp)
{
  bool bounded = tcp->timers[TIMER_USER] != TIMER_OFF;
  if (!bounded && tcp->syn_transmits > SYN_RETRIES &&
      tcp->stack->now - tcp->last_progress >= HANDSHAKE_LEAST) {
    if (tcp->listener) {
      /* As Linux: who was forged is told nothing, and who is there and waits for the accept queue
       * hears of it when it next says something. */
      COUNT(tcp->stack, tcp_timeouts);
      tcp_finish(tcp, -ETIMEDOUT);
    } else {
      give_up(tcp);
    }
    return;
  }
  COUNT(tcp->stack, tcp_retransmits);
  tcp->retransmits++;
  count_timeout(tcp, tcp->syn_transmits == 1);
  tcp_send_syn(tcp);
}

/* As Linux: who has closed is gone, and a peer that answers, and takes nothing for so long, does
 * not keep the rest for ever. */
static bool orphan_is_done(const struct harp_tcp *tcp, bool probing)
{
  uint64_t longest = tcp->stack->config.rto_max_us * NS_PER_US;
  return tcp->detached && probing && tcp->rto << HARP_MIN(tcp->backoff, (int)MAX_SHIFT) >= longest;
}

static void retransmit_timer(struct harp_tcp *tcp)
{
  if (tcp->state == TCP_SYN_SENT || tcp->state == TCP_SYN_RECV) {
    syn_timer(tcp);
    return;
  }
  bool probing = tcp->snd_wnd == 0 || !tcp->records;
  bool bounded = tcp->timers[TIMER_USER] != TIMER_OFF; /* RFC 5482: that counts, however long */
  bool tried = (probing ? tcp->probes : tcp->backoff) >= DATA_RETRIES;
  if ((!bounded && tried) || orphan_is_done(tcp, probing)) {
    give_up(tcp);
    return;
  }
  if (tcp->backoff < UINT8_MAX) {
    tcp->backoff++;
  }
  if (probing) {
    tcp->probes += tcp_send_window_probe(tcp);
  } else {
    count_timeout(tcp, tcp->backoff == 1);
    tcp_recovery_on_rto(tcp);
    tcp_mark_dirty(tcp);
  }
  tcp_arm_rto(tcp);
}

/* What a peer's silence, ns, and the probes without an answer say. As in Linux, a user timeout
 * counts instead of the number of probes. */
static bool peer_is_dead(const struct harp_tcp *tcp, uint64_t quiet)
{
  return tcp->user_timeout_ms ? tcp->probes > 0 && quiet >= tcp->user_timeout_ms * NS_PER_MS
                              : tcp->probes >= tcp->keep_probes;
}

/* The device has refused every probe for twice the time that they have. */
static bool device_is_dead(const struct harp_tcp *tcp, uint64_t quiet)
{
  uint64_t probing = tcp->keep_probes * tcp->keep_interval_ms;
  uint64_t bound = tcp->user_timeout_ms ? 2ull * tcp->user_timeout_ms
                                        : tcp->keep_idle_ms + 2 * probing;
  return quiet >= bound * NS_PER_MS;
}

static void keepalive_timer(struct harp_tcp *tcp)
{
  struct harp_stack *stack = tcp->stack;
  uint64_t quiet = stack->now - tcp->last_receive;
  uint64_t idle = tcp->keep_idle_ms * NS_PER_MS, interval = tcp->keep_interval_ms * NS_PER_MS;
  /* Retransmission watches over what is in flight, and over what no probe could carry
   * yet. And a peer that has said all it would may go: its silence must not cost what its
   * last bytes wait for. */
  bool sends = tcp->records || tcp->snd_nxt != tcp->snd_end + tcp->fin_sent;
  bool needless = sends || (tcp->fin_received && tcp->queued);
  if (quiet < idle || needless) {
    uint64_t next = quiet < idle ? tcp->last_receive + idle : stack->now + idle;
    tcp_timer_set(tcp, TIMER_KEEPALIVE, next);
    return;
  }
  if (peer_is_dead(tcp, quiet)) {
    give_up(tcp);
    return;
  }
  bool asked = tcp_send_probe(tcp);
  if (!asked && device_is_dead(tcp, quiet)) {
    give_up(tcp);
    return;
  }
  if (asked && tcp->probes < UINT8_MAX) {
    tcp->probes++; /* a probe that the device refused needs no answer */
  }
  uint64_t next = stack->now + interval;
  uint64_t deadline = tcp->last_receive + tcp->user_timeout_ms * NS_PER_MS;
  if (tcp->user_timeout_ms && deadline > stack->now) {
    next = HARP_MIN(next, deadline);
  }
  tcp_timer_set(tcp, TIMER_KEEPALIVE, next);
}

static void user_timer(struct harp_tcp *tcp)
{
  uint64_t deadline = tcp->last_progress + tcp->user_timeout_ms * NS_PER_MS;
  if (tcp->user_timeout_ms == 0) {
    return;
  }
  if (tcp->stack->now >= deadline) {
    give_up(tcp);
  } else {
    tcp_timer_set(tcp, TIMER_USER, deadline);
  }
}

void tcp_account_pause(struct harp_stack *stack, uint64_t pause)
{
  for (uint32_t i = 0; i < stack->bucket_count; i++) {
    for (struct harp_tcp *tcp = stack->buckets[i]; tcp; tcp = tcp->hash_next) {
      tcp->last_receive = HARP_MIN(tcp->last_receive + pause, stack->now);
      tcp->last_progress = HARP_MIN(tcp->last_progress + pause, stack->now);
    }
  }
}

static void state_timer(struct harp_tcp *tcp)
{
  if (!tcp->detached && tcp->queued) {
    /* The owner has not read everything yet, and that is never dropped. */
    tcp_timer_set(tcp, TIMER_STATE, tcp->stack->now + 60 * NS_PER_S);
    return;
  }
  tcp_finish(tcp, 0);
}

static void fire(struct harp_tcp *tcp, enum harp_timer timer)
{
  switch (timer) {
  case TIMER_RETRANSMIT: retransmit_timer(tcp); break;
  case TIMER_LOSS: tcp_recovery_on_loss_timer(tcp); break;
  case TIMER_DELAYED_ACK:
    tcp->ack_now = true;
    tcp_mark_dirty(tcp);
    break;
  case TIMER_KEEPALIVE: keepalive_timer(tcp); break;
  case TIMER_USER: user_timer(tcp); break;
  default: state_timer(tcp); break;
  }
}

void tcp_timers_run(struct harp_stack *stack)
{
  while (tcp_timers_next(stack) <= stack->now) {
    struct harp_tcp *tcp = stack->heap[0];
    stack->current = tcp;
    for (int i = 0; i < TIMERS && tcp->state != TCP_CLOSE; i++) {
      if (tcp->timers[i] <= stack->now) {
        tcp->timers[i] = TIMER_OFF;
        fire(tcp, (enum harp_timer)i);
      }
    }
  }
}
