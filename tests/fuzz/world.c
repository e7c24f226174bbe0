/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/world.h"

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/ip/checksum.h"
#include "harp/stack/pool.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_conn.h"
#include "tests/sim/books.h"

enum {
  SECOND_CONNECTION = 1, /* its owner sends by the pull callback */
  /* most timers until a stack is at rest; an open with a user timeout sends a SYN every two
   * seconds */
  LAST_ROUNDS = 4096,
};

/* --- The owner --- */

static size_t on_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  struct connection *connection = user;
  struct world *world = connection->world;
  size_t taken = HARP_MIN(length, (size_t)world->takes);
  uint32_t first = tcp->rcv.irs + 1 + (uint32_t)connection->received;
  FUZZ_EXPECT(connection->tcp == tcp && length > 0);
  FUZZ_EXPECT(taken == 0 || world->unchecked || memcmp(data, pattern_at(first), taken) == 0);
  world->takes -= (uint32_t)taken;
  connection->received += taken;
  return taken;
}

static void on_acked(void *user, struct harp_tcp *tcp, uint32_t bytes)
{
  struct connection *connection = user;
  connection->acked += bytes;
  FUZZ_EXPECT(connection->acked <= connection->pushed);
}

static void on_pull(void *user, struct harp_tcp *tcp, uint32_t room)
{
  struct connection *connection = user;
  uint32_t length = HARP_MIN(room, connection->to_pull);
  connection->to_pull -= length;
  world_push(connection, length, false);
}

static void on_closed(void *user, struct harp_tcp *tcp, int error)
{
  struct connection *connection = user;
  FUZZ_EXPECT(connection->tcp == tcp);
  connection->tcp = NULL;
}

static const struct harp_flow_ops pushing = {
    .deliver = on_deliver, .acked = on_acked, .closed = on_closed};
static const struct harp_flow_ops pulled = {
    .deliver = on_deliver, .acked = on_acked, .pull = on_pull, .closed = on_closed};

static const struct harp_flow_ops *ops_of(const struct connection *connection)
{
  bool second = connection == &connection->world->connections[SECOND_CONNECTION];
  return second ? &pulled : &pushing;
}

static void own(struct connection *connection, struct harp_tcp *tcp)
{
  connection->tcp = tcp;
  connection->received = connection->pushed = connection->acked = 0;
  connection->to_pull = 0;
}

static int on_accept(void *user, struct harp_tcp *tcp)
{
  struct world *world = user;
  uint32_t index = (uint32_t)harp_flow_peer(tcp).port - WORLD_PEER_PORT;
  if (index >= WORLD_CONNECTIONS || world->connections[index].tcp) {
    return -EBUSY;
  }
  struct connection *connection = &world->connections[index];
  own(connection, tcp);
  harp_flow_attach(tcp, ops_of(connection), connection);
  return 0;
}

/* --- The device --- */

static void check_payload(struct world *world, const uint8_t *tcp_header,
                          const struct harp_tx_frame *frame)
{
  uint32_t index = (uint32_t)load_be16(tcp_header + TCP_DEST) - WORLD_PEER_PORT;
  const struct harp_tcp *tcp = index < WORLD_CONNECTIONS
                                   ? world_find(world, &world->connections[index])
                                   : NULL;
  if (!tcp && world->stack->link_header) {
    return; /* the frame waited for ARP longer than its connection existed */
  }
  FUZZ_EXPECT(tcp != NULL);
  uint32_t at = load_be32(tcp_header + TCP_SEQUENCE) - (tcp->snd.iss + 1);
  FUZZ_EXPECT(at + (frame->length - frame->header_length) <=
              (uint32_t)world->connections[index].pushed);
  for (int i = 1; i < frame->iov_count; i++) {
    size_t length = frame->iov[i].iov_len;
    FUZZ_EXPECT(memcmp(frame->iov[i].iov_base, pattern_at(at), length) == 0);
    at += (uint32_t)length;
  }
}

static void check_frame(struct world *world, const struct harp_tx_frame *frame)
{
  const uint8_t *ip = (const uint8_t *)frame->iov[0].iov_base + world->stack->link_header;
  uint32_t length = frame->length - world->stack->link_header;
  size_t total = 0;
  for (int i = 0; i < frame->iov_count; i++) {
    total += frame->iov[i].iov_len;
  }
  FUZZ_EXPECT(total == frame->length);
  if (world->stack->link_header &&
      load_be16((const uint8_t *)frame->iov[0].iov_base + ETH_TYPE) != ETH_TYPE_IPV4) {
    return;
  }
  FUZZ_EXPECT(length <= world->stack->config.mtu && load_be16(ip + IP_TOTAL_LENGTH) == length);
  FUZZ_EXPECT(harp_checksum(ip, IP_HEADER) == 0);
  if (ip[IP_PROTOCOL] != IP_PROTOCOL_TCP) {
    return;
  }
  struct harp_sum sum = {0};
  harp_sum_add_pseudo(&sum, load_address(ip + IP_SRC), load_address(ip + IP_DST), IP_PROTOCOL_TCP,
                      length - IP_HEADER);
  size_t before = world->stack->link_header + IP_HEADER;
  for (int i = 0; i < frame->iov_count; i++) {
    harp_sum_add(&sum, (const uint8_t *)frame->iov[i].iov_base + before,
                 frame->iov[i].iov_len - before);
    before = 0;
  }
  FUZZ_EXPECT(harp_sum_fold(&sum) == 0xffff);
  if (frame->length > frame->header_length) {
    check_payload(world, ip + IP_HEADER, frame);
  }
}

static int on_transmit(void *user, const struct harp_tx_frame *frame)
{
  struct world *world = user;
  check_frame(world, frame);
  if (world->refuses > 0) {
    world->refuses--;
    return -EAGAIN;
  }
  return 0;
}

/* --- Calls for inputs --- */

void world_receive(struct world *world, const uint8_t *frame, uint32_t length, uint32_t split)
{
  /* Both pieces end at the end of their memory. */
  static uint8_t headers[WORLD_FRAME], payload[WORLD_FRAME];
  uint32_t first = HARP_MIN(split, length);
  struct harp_rx_frame pieces = {
      .header = headers + sizeof headers - first,
      .header_length = first,
      .payload = payload + sizeof payload - (length - first),
      .payload_length = length - first,
  };
  memcpy(headers + sizeof headers - first, frame, first);
  memcpy(payload + sizeof payload - (length - first), frame + first, length - first);
  harp_stack_receive(world->stack, &pieces);
  harp_stack_flush(world->stack);
}

void world_advance(struct world *world, uint64_t now)
{
  world->now = HARP_MAX(world->now, now);
  harp_stack_advance(world->stack, world->now);
}

struct harp_tcp *world_find(const struct world *world, const struct connection *connection)
{
  uint32_t index = (uint32_t)(connection - world->connections);
  return tcp_lookup(world->stack, WORLD_PEER, (uint16_t)(WORLD_PEER_PORT + index),
                    connection->local_port);
}

void world_connect(struct world *world, struct connection *connection)
{
  uint16_t index = (uint16_t)(connection - world->connections);
  struct harp_endpoint peer = {WORLD_PEER, (uint16_t)(WORLD_PEER_PORT + index)};
  struct harp_tcp *tcp;
  if (connection->tcp) {
    return;
  }
  uint16_t port = (uint16_t)(WORLD_OWN_PORT + index);
  if (harp_flow_connect(world->stack, port, peer, ops_of(connection), connection, &tcp) == 0) {
    own(connection, tcp);
    connection->local_port = port;
  }
}

void world_push(struct connection *connection, uint32_t length, bool end)
{
  const uint8_t *data = pattern_at((uint32_t)connection->pushed);
  if (length > 0 && harp_flow_push(connection->tcp, data, length, end) == 0) {
    connection->pushed += length;
  }
}

void world_check(struct world *world)
{
  const struct harp_stack *stack = world->stack;
  for (uint32_t i = 0; i < stack->bucket_count; i++) {
    for (const struct harp_tcp *tcp = stack->buckets[i]; tcp; tcp = tcp->hash_next) {
      const char *wrong = tcp_synchronized(tcp) ? tcp_books(tcp, true) : NULL;
      if (wrong) {
        fuzz_wrong(__FILE__, __LINE__, wrong);
      }
    }
  }
}

void world_end(struct world *world)
{
  struct harp_stack *stack = world->stack;
  const struct harp_pool *pool;
  for (int i = 0; i < WORLD_CONNECTIONS; i++) {
    if (world->connections[i].tcp) {
      harp_flow_abort(world->connections[i].tcp);
    }
  }
  harp_flow_unlisten(world->listener);
  world->refuses = 0;
  harp_stack_advance(stack, world->now);
  /* Timers release the rest: TIME-WAIT, and frames that wait for ARP. */
  for (int i = 0; i < LAST_ROUNDS && stack_in_use(stack, &pool); i++) {
    FUZZ_EXPECT(harp_stack_next_deadline(stack) != UINT64_MAX);
    harp_stack_advance(stack, HARP_MAX(harp_stack_next_deadline(stack), stack->now + 1));
  }
  const char *what = stack_in_use(stack, &pool);
  if (what) {
    fuzz_wrong(__FILE__, __LINE__, what);
  }
  FUZZ_EXPECT(stack->counters[HARP_COUNTER_tcp_connections] == 0);
}

struct world *world_create(int link)
{
  static const struct harp_flow_ops accepting = {.accept = on_accept};
  struct world *world = calloc(1, sizeof *world);
  struct harp_stack_config config;
  struct harp_stack_io io = {
      .user = world, .transmit = on_transmit, .offloads = HARP_OFFLOAD_RX_CHECKSUM};
  harp_stack_config_default(&config);
  config.link = link;
  config.address = WORLD_ADDRESS;
  memcpy(config.mac, (uint8_t[6]){2, 0, 0, 0, 0, 2}, 6);
  config.max_connections = WORLD_CONNECTIONS + 2;
  config.packets = 24;
  config.rcvbuf = 24 << 10;
  FUZZ_EXPECT(harp_stack_create_io(&world->stack, &config, &io) == 0);
  arena_skip(world->stack->linear, sizeof world->stack->linear);
  FUZZ_EXPECT(
      harp_flow_listen(world->stack, WORLD_LISTENER, 2, &accepting, world, &world->listener) == 0);
  world->now = 1000 * NS_PER_S;
  world->takes = UINT32_MAX;
  harp_stack_advance(world->stack, world->now);
  for (int i = 0; i < WORLD_CONNECTIONS; i++) {
    world->connections[i].world = world;
    world->connections[i].local_port = WORLD_LISTENER;
  }
  return world;
}
