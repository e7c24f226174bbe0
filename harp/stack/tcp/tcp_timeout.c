/* SPDX-License-Identifier: Apache-2.0 */
/* Expired timers: retransmission, keepalive, user timeout, TIME-WAIT. */
#include "harp/stack/tcp/tcp_timeout.h"

#include "harp/stack/bytes.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_output.h"
#include "harp/stack/tcp/tcp_recovery.h"
#include "harp/stack/tcp/tcp_timer.h"
#include "harp/stack/tcp/tcp_times.h"
#include "harp/stack/tcp/tcp_tlp.h"

static void give_up(struct harp_tcp *tcp)
{
  COUNT(tcp->stack, tcp_timeouts);
  tcp_send_reset(tcp);
  tcp_finish(tcp, -ETIMEDOUT);
}

/* first: the first timeout since the last acknowledgement of new data. */
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
      /* As Linux: send no RST to a possibly forged address. A real peer that waits for the accept
       * queue gets a RST for its next segment. */
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

/* As Linux: after the owner has closed, a peer with a closed window does not keep the connection
 * open forever. It ends when the backed-off RTO reaches its limit. */
static bool orphan_is_done(const struct harp_tcp *tcp, bool probing)
{
  uint64_t longest = tcp->stack->config.rto_max_us * NS_PER_US;
  return tcp->detached && probing &&
         tcp->rtt.rto << HARP_MIN(tcp->backoff, (int)TCP_BACKOFF_MAX) >= longest;
}

static void rto_timer(struct harp_tcp *tcp)
{
  if (tcp->state == TCP_SYN_SENT || tcp->state == TCP_SYN_RECV) {
    syn_timer(tcp);
    return;
  }
  bool probing = tcp->snd.wnd == 0 || !tcp->flight.first;
  /* RFC 5482: the user timeout replaces the retry limit. */
  bool bounded = tcp->timers[TIMER_USER] != TIMER_OFF;
  bool tried = (probing ? tcp->probes : tcp->tries) >= DATA_RETRIES;
  if ((!bounded && tried) || orphan_is_done(tcp, probing)) {
    give_up(tcp);
    return;
  }
  if (tcp->backoff < UINT8_MAX) {
    tcp->backoff++;
  }
  if (probing) {
    bool sent = tcp_send_window_probe(tcp);
    tcp->probes += sent;
    tcp->backoff -= !sent; /* the peer has not left it unanswered */
  } else {
    tcp->tries += tcp->tries < UINT8_MAX;
    count_timeout(tcp, tcp->tries == 1);
    tcp_recovery_on_rto(tcp);
    tcp_resend_without_record(tcp);
    tcp_mark_dirty(tcp);
  }
  tcp_arm_rto(tcp);
}

/* Whether keepalive gives the peer up. quiet: ns since its last segment. The user timeout
 * replaces the number of probes, as in Linux. */
static bool peer_is_dead(const struct harp_tcp *tcp, uint64_t quiet)
{
  return tcp->user_timeout_ms ? tcp->probes > 0 && quiet >= tcp->user_timeout_ms * NS_PER_MS
                              : tcp->probes >= tcp->keep_probes;
}

/* Whether the device has refused all probes for twice the time of the keepalive timeout. */
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
  /* The retransmission timer covers a SYN, data in flight and unsent data. A peer that has sent its
   * FIN may be gone: its silence must not end the connection before the owner has read its last
   * bytes. */
  bool sends = !tcp_synchronized(tcp) || tcp->flight.first || tcp_has_unsent(tcp);
  bool needless = sends || (tcp->rcv.fin_received && tcp->rcv.queued);
  if (quiet < idle || needless) {
    uint64_t next = quiet < idle ? tcp->last_receive + idle : stack->now + idle;
    tcp_timer_set(tcp, TIMER_KEEPALIVE, next);
    return;
  }
  if (peer_is_dead(tcp, quiet)) {
    give_up(tcp);
    return;
  }
  bool probed = tcp_send_probe(tcp);
  if (!probed && device_is_dead(tcp, quiet)) {
    give_up(tcp);
    return;
  }
  if (probed && tcp->probes < UINT8_MAX) {
    tcp->probes++; /* a probe that the device refused is not counted */
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

static void close_timer(struct harp_tcp *tcp)
{
  if (!tcp->detached && tcp->rcv.queued) {
    /* The owner has unread data, which is never dropped. */
    tcp_timer_set(tcp, TIMER_CLOSE, tcp->stack->now + FIN_WAIT_2_NS);
    return;
  }
  tcp_finish(tcp, 0);
}

static void fire(struct harp_tcp *tcp, enum harp_timer timer)
{
  switch (timer) {
  case TIMER_RTO: rto_timer(tcp); break;
  case TIMER_RACK: tcp_recovery_on_rack_timer(tcp); break;
  case TIMER_TLP: tcp_tlp_on_timer(tcp); break;
  case TIMER_DELAYED_ACK: tcp_ack_timer(tcp); break;
  case TIMER_KEEPALIVE: keepalive_timer(tcp); break;
  case TIMER_USER: user_timer(tcp); break;
  default: close_timer(tcp); break;
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
