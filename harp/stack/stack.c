/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of a stack, its clock, and the flush at the end of a burst. */
#include "harp/stack.h"
#include "harp/counters.h"
#include "harp/frame.h"
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/ip_input.h"
#include "harp/stack/ip/neighbour.h"
#include "harp/stack/list.h"
#include "harp/stack/packet.h"
#include "harp/stack/pool.h"
#include "harp/stack/siphash.h"
#include "harp/stack/socket/socket.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_sched.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "harp/stack/tcp/tcp_control.h"
#include "harp/stack/tcp/tcp_listener.h"
#include "harp/stack/tcp/tcp_output.h"
#include "harp/stack/tcp/tcp_predict.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timeout.h"
#include "harp/stack/tcp/tcp_timer.h"

enum {
  FLUSH_ROUNDS = 8, /* output may enable more output; this bounds the rounds */
  TSO_MAX = 65535,  /* IPv4's total length */
};

void harp_stack_config_default(struct harp_stack_config *config)
{
  *config = (struct harp_stack_config){
      .size = sizeof *config,
      .link = HARP_LINK_IP,
      .prefix = 24,
      .mtu = 1500,
      .max_connections = 1024,
      .packets = 16384,
      .initial_window = 10,
      .rto_initial_us = 1000000,
      .rto_min_us = 200000,
      .rto_max_us = 120000000,
      .delayed_ack_us = 40000,
      .timestamps = 1,
      .sack = 1,
      .window_scale = 7,
      .sndbuf = 1 << 20,
      .rcvbuf = 4 << 20,
  };
}

static bool valid(const struct harp_stack_config *config)
{
  bool good = config->size == sizeof *config;
  good &= config->link == HARP_LINK_IP || config->link == HARP_LINK_ETHERNET;
  /* Network order; unicast, not 0.x.x.x and not multicast. */
  uint8_t first = (uint8_t)config->address;
  good &= first != 0 && first < 224 && !(config->mac[0] & 1);
  good &= config->prefix <= 32 && config->mtu >= 576;
  good &= config->max_connections > 0 && config->max_connections <= 1 << 20;
  good &= config->packets >= 8 && config->packets <= 1 << 24;
  good &= config->initial_window > 0 && config->initial_window <= 1000;
  good &= config->rto_initial_us > 0 && config->rto_min_us > 0;
  good &= config->rto_max_us >= config->rto_min_us;
  good &= config->window_scale >= -1 && config->window_scale <= 14;
  good &= config->sndbuf > 0 && config->rcvbuf > 0 && config->rcvbuf <= 1 << 30;
  return good && harp_cc_find(config->cc) != NULL;
}

/* The adapter for users of harp/stack.h, who use no offloads. */
static int output_callback(void *user, const struct harp_tx_frame *frame)
{
  struct harp_stack *stack = user;
  stack->callbacks.output(stack->callbacks.user, frame->iov, frame->iov_count);
  return 0;
}

static int create_pools(struct harp_stack *stack)
{
  const struct harp_stack_config *config = &stack->config;
  uint32_t connections = config->max_connections;
  /* References and records: one for each packet buffer, and four more for each connection. */
  uint32_t pieces = config->packets + 4 * connections;
  stack->bucket_count = hash_buckets(connections, &stack->bucket_shift);
  stack->bucket_multiplier = harp_siphash(config->seed, stack->bucket_count, 0) | 1;
  uint32_t listeners = HARP_MIN(connections + 16, (uint32_t)HARP_MAX_LISTENERS);
  uint32_t chains = hash_buckets(listeners, &stack->listener_shift);
  stack->buckets = calloc(stack->bucket_count, sizeof *stack->buckets);
  stack->listeners = calloc(chains, sizeof *stack->listeners);
  stack->heap = calloc(connections, sizeof *stack->heap);
  bool failed = !stack->buckets || !stack->heap || !stack->listeners;
  failed |= pool_create(&stack->connections, sizeof(struct harp_tcp), connections) != 0;
  failed |= pool_create(&stack->packets, HARP_PACKET_SIZE, config->packets) != 0;
  failed |= pool_create(&stack->references, sizeof(struct harp_reference), pieces) != 0;
  failed |= pool_create(&stack->records, sizeof(struct harp_record), pieces) != 0;
  failed |= pool_create(&stack->listener_pool, sizeof(struct harp_listener), listeners) != 0;
  stack->sockets = sockets_create(stack, config);
  failed |= stack->sockets == NULL;
  failed |= neighbours_create(stack) != 0;
  return failed ? -ENOMEM : 0;
}

static void set_up_link(struct harp_stack *stack)
{
  stack->link_header = stack->config.link == HARP_LINK_ETHERNET ? ETH_HEADER : 0;
  uint32_t largest = TSO_MAX - IP_HEADER - TCP_MAX_HEADER;
  if (stack->io.offloads & HARP_OFFLOAD_TSO) {
    largest = HARP_MIN(largest, stack->io.max_frame - MAX_HEADERS);
  }
  /* One output call makes one transmit record, even if the stack splits it into several frames. */
  stack->max_payload = largest;
}

int harp_stack_create_io(struct harp_stack **out, const struct harp_stack_config *config,
                         const struct harp_stack_io *io)
{
  if (!valid(config) || !io->transmit) {
    return -EINVAL;
  }
  struct harp_stack *stack = aligned_alloc(64, (sizeof *stack + 63) & ~(size_t)63);
  if (!stack) {
    return -ENOMEM;
  }
  memset(stack, 0, sizeof *stack);
  stack->config = *config;
  stack->config.cc = harp_cc_find(config->cc)->name; /* the caller may free its string */
  stack->io = *io;
  stack->tentative = io->tentative;
  stack->counters = io->counters ? io->counters : stack->own_counters;
  list_init(&stack->half_open);
  list_init(&stack->time_wait);
  set_up_link(stack);
  if (create_pools(stack) != 0) {
    harp_stack_destroy(stack);
    return -ENOMEM;
  }
  stack->counters[HARP_COUNTER_packets_total] = config->packets;
  *out = stack;
  return 0;
}

int harp_stack_create(struct harp_stack **out, const struct harp_stack_config *config,
                      const struct harp_stack_callbacks *callbacks)
{
  if (!callbacks || !callbacks->output) {
    return -EINVAL;
  }
  struct harp_stack_io io = {.transmit = output_callback};
  int result = harp_stack_create_io(out, config, &io);
  if (result == 0) {
    (*out)->callbacks = *callbacks;
    (*out)->io.user = *out;
  }
  return result;
}

void harp_stack_destroy(struct harp_stack *stack)
{
  if (!stack) {
    return;
  }
  sockets_destroy(stack->sockets);
  neighbours_destroy(stack);
  pool_destroy(&stack->connections);
  pool_destroy(&stack->packets);
  pool_destroy(&stack->references);
  pool_destroy(&stack->records);
  pool_destroy(&stack->listener_pool);
  free(stack->buckets);
  free(stack->listeners);
  free(stack->heap);
  free(stack);
}

uint64_t *harp_stack_counters(struct harp_stack *stack)
{
  stack->counters[HARP_COUNTER_packets_used] = stack->packets.total - stack->packets.available;
  return stack->counters;
}

struct harp_socket_table *harp_stack_sockets(const struct harp_stack *stack)
{
  return stack->sockets;
}

const char *harp_stack_counter_name(unsigned int index)
{
  if (index < HARP_COUNTERS) {
    return harp_counter_info[index].name;
  }
  index -= HARP_COUNTERS;
  return index < HARP_COUNTER_ALIASES ? harp_counter_aliases[index].name : NULL;
}

uint64_t harp_stack_counter(struct harp_stack *stack, unsigned int index)
{
  const uint64_t *counters = harp_stack_counters(stack);

  if (index < HARP_COUNTERS) {
    return counters[index];
  }
  index -= HARP_COUNTERS;
  return index < HARP_COUNTER_ALIASES ? counters[harp_counter_aliases[index].counter] : 0;
}

/* Sends the acknowledgements that the previous flush has deferred. */
static void send_held(struct harp_tcp *list)
{
  while (list) {
    struct harp_tcp *tcp = list;
    list = tcp_ack_unlist(tcp);
    if (tcp->ack.state != ACK_IDLE && tcp->state != TCP_CLOSE) {
      tcp_send_ack(tcp);
    }
  }
}

static void service(struct harp_tcp *tcp)
{
  tcp->stack->current = tcp;
  if (tcp->state == TCP_SYN_SENT && tcp->syn_transmits == 0) {
    tcp_send_syn(tcp);
    return;
  }
  bool wanted = tcp->ack.state != ACK_IDLE;
  /* Data segments carry the acknowledgement, but only a bare ACK carries SACK blocks. The bare ACK
   * goes first. If the ACK on a data segment came first, it would have no DSACK, and the peer would
   * take its tail loss probe for the repair of a loss (RFC 8985, 7.4). */
  if (wanted && tcp_has_gaps(tcp)) {
    tcp_send_ack(tcp);
  }
  tcp_output(tcp);
  if (tcp->ack.state != ACK_IDLE && tcp->state != TCP_CLOSE && !tcp_ack_hold(tcp)) {
    tcp_send_ack(tcp);
  }
}

static struct harp_tcp *take_dirty(struct harp_stack *stack)
{
  struct harp_tcp *list = stack->dirty;
  stack->dirty = stack->dirty_last = NULL;
  return list;
}

/* Returns the block to the pool; at a later flush if it is still in the list of held ACKs. */
static void release(struct harp_tcp *tcp)
{
  if (tcp->ack.listed) {
    tcp_mark_dirty(tcp);
  } else {
    pool_put(&tcp->stack->connections, tcp);
  }
}

void harp_stack_flush(struct harp_stack *stack)
{
  struct harp_tcp *held = tcp_ack_take_held(stack);
  stack->port_full = false;
  for (int round = 0; round < FLUSH_ROUNDS && stack->dirty && !stack->port_full; round++) {
    struct harp_tcp *next;
    for (struct harp_tcp *tcp = take_dirty(stack); tcp; tcp = next) {
      next = tcp->dirty_next;
      tcp->dirty = false;
      if (tcp->state == TCP_CLOSE) {
        release(tcp);
      } else {
        service(tcp);
      }
    }
  }
  send_held(held);
  stack->current = NULL;
}

void stack_free_closed(struct harp_stack *stack)
{
  struct harp_tcp *next;
  for (struct harp_tcp *tcp = take_dirty(stack); tcp; tcp = next) {
    next = tcp->dirty_next;
    tcp->dirty = false;
    if (tcp->state == TCP_CLOSE && tcp != stack->current && !tcp->ending) {
      release(tcp);
    } else {
      tcp_mark_dirty(tcp);
    }
  }
}

/* A separate function, so that the fast path does not save registers for it. */
__attribute__((noinline)) static int receive_unpredicted(struct harp_stack *stack,
                                                         const struct harp_rx_frame *frame)
{
  uint64_t before = stack->counters[HARP_COUNTER_rx_drop_malformed] +
                    stack->counters[HARP_COUNTER_rx_drop_truncated];
  ip_input(stack, frame);
  uint64_t after = stack->counters[HARP_COUNTER_rx_drop_malformed] +
                   stack->counters[HARP_COUNTER_rx_drop_truncated];
  return before == after ? 0 : -EINVAL;
}

int harp_stack_receive(struct harp_stack *stack, const struct harp_rx_frame *frame)
{
  COUNT(stack, rx_frames);
  COUNT_N(stack, rx_bytes, frame->header_length + frame->payload_length);
  return tcp_predicted(stack, frame) ? 0 : receive_unpredicted(stack, frame);
}

int harp_stack_input_merged(struct harp_stack *stack, const void *frame, size_t length,
                            uint16_t gso_size)
{
  if (length > 65535 + ETH_HEADER) {
    COUNT(stack, rx_drop_malformed);
    return -EINVAL;
  }
  struct harp_rx_frame whole = {
      .header = frame,
      .header_length = (uint32_t)length,
      .segment_size = gso_size,
  };
  int result = harp_stack_receive(stack, &whole);
  harp_stack_flush(stack);
  return result;
}

int harp_stack_input(struct harp_stack *stack, const void *frame, size_t length)
{
  return harp_stack_input_merged(stack, frame, length, 0);
}

void harp_stack_set_time(struct harp_stack *stack, uint64_t now_ns)
{
  if (now_ns > stack->now) {
    stack->now = now_ns;
  }
}

void harp_stack_advance(struct harp_stack *stack, uint64_t now_ns)
{
  harp_stack_set_time(stack, now_ns);
  neighbour_timers(stack, tcp_neighbour_failed);
  tcp_timers_run(stack);
  harp_stack_flush(stack);
}

void harp_stack_account_pause(struct harp_stack *stack, uint64_t pause_ns)
{
  stack->resumed = stack->now;
  tcp_account_pause(stack, pause_ns);
}

uint64_t harp_stack_next_deadline(struct harp_stack *stack)
{
  if (stack->dirty || stack->held) {
    return stack->now;
  }
  return HARP_MIN(tcp_timers_next(stack), neighbour_timers_next(stack));
}
