/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stack's cost per segment, measured in instructions: two stacks in one process and in virtual
 * time, bursts of full frames with 1448 bytes of payload, one connection after the other. The stack
 * does the segmentation itself. The device does the checksums, and the payload is not copied.
 *
 * Usage: harp-segments CONNECTIONS ROUNDS. Prints "SEGMENTS ACKNOWLEDGEMENTS NANOSECONDS". The time
 * is that of all rounds, in which the connections take turns. An instruction
 * counter that functions switch on and off (callgrind --toggle-collect) measures one of
 * measure_transmit, measure_receive, measure_answer and measure_acknowledge. hand_over and take are
 * not part of the stack.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harp/stack/flow.h"

enum {
  PAYLOAD = 1448, /* of a segment at MTU 1500, with timestamps */
  BURST = 32,     /* segments per round, like one poll's */
  FRAME = 1514,
  WARM_UP = 4, /* rounds per connection; they end the handshakes and first windows */
  SERVER_PORT = 9,
  CLIENT_PORTS = 10000,
};
#define ROUND_NS 20000ull

struct frame {
  uint8_t bytes[FRAME];
  uint32_t length;
};

struct host {
  struct harp_stack *stack;
  struct host *peer;
  struct frame inbox[2 * BURST];
  int waiting;
};

void measure_transmit(struct host *host);
void measure_receive(struct host *host);
void measure_answer(struct host *host);
void measure_acknowledge(struct host *host);
int hand_over(void *user, const struct harp_tx_frame *frame);

static uint8_t message[BURST * PAYLOAD];
static uint64_t now;

static void must(bool good, const char *what)
{
  if (!good) {
    fprintf(stderr, "harp-segments: %s\n", what);
    exit(1);
  }
}

__attribute__((noinline)) int hand_over(void *user, const struct harp_tx_frame *frame)
{
  struct host *host = user;
  struct frame *slot = &host->peer->inbox[host->peer->waiting++];
  must(host->peer->waiting <= 2 * BURST, "more frames than a burst makes");
  slot->length = 0;
  for (int i = 0; i < frame->iov_count; i++) {
    memcpy(slot->bytes + slot->length, frame->iov[i].iov_base, frame->iov[i].iov_len);
    slot->length += (uint32_t)frame->iov[i].iov_len;
  }
  return 0;
}

size_t take(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);

__attribute__((noinline)) size_t take(void *user, struct harp_tcp *tcp, const uint8_t *data,
                                      size_t length)
{
  *(size_t *)user += length;
  return length;
}

static int let_in(void *user, struct harp_tcp *tcp)
{
  static const struct harp_flow_ops receiver = {.deliver = take};
  harp_flow_attach(tcp, &receiver, user);
  harp_flow_set_harp_peer(tcp, 5000);
  return 0;
}

static void receive(struct host *host)
{
  for (int i = 0; i < host->waiting; i++) {
    struct harp_rx_frame frame = {
        .header = host->inbox[i].bytes,
        .header_length = host->inbox[i].length,
        .checksum_good = 1,
    };
    harp_stack_receive(host->stack, &frame);
  }
  host->waiting = 0;
}

/* Sends the pushed data. */
__attribute__((noinline)) void measure_transmit(struct host *host)
{
  harp_stack_flush(host->stack);
}

/* Receives a burst of data. */
__attribute__((noinline)) void measure_receive(struct host *host) { receive(host); }

/* Ends the burst, with the acknowledgement. */
__attribute__((noinline)) void measure_answer(struct host *host) { harp_stack_flush(host->stack); }

/* Receives the acknowledgement of a burst. */
__attribute__((noinline)) void measure_acknowledge(struct host *host) { receive(host); }

static void create(struct host *host, struct host *peer, uint32_t address, unsigned connections)
{
  struct harp_stack_config config;
  struct harp_stack_io io = {
      .user = host,
      .transmit = hand_over,
      .offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_RX_CHECKSUM,
  };
  harp_stack_config_default(&config);
  config.link = HARP_LINK_ETHERNET;
  config.address = htonl(address);
  memcpy(config.mac, (uint8_t[6]){2, 0, 0, 0, 0, (uint8_t)address}, 6);
  /* an eighth is reserved for connections opened by this host */
  config.max_connections = connections * 8 / 7 + 16;
  config.initial_window = 2 * BURST;
  host->peer = peer;
  must(harp_stack_create_io(&host->stack, &config, &io) == 0, "no stack");
}

/* Runs both stacks until all frames are exchanged. */
static void exchange_all(struct host *client, struct host *server)
{
  now += ROUND_NS;
  for (int i = 0; i < 8; i++) {
    harp_stack_advance(client->stack, now);
    harp_stack_advance(server->stack, now);
    receive(server);
    receive(client);
  }
}

static int round_trip(struct host *client, struct host *server, struct harp_tcp *flow)
{
  now += ROUND_NS;
  harp_stack_advance(client->stack, now);
  harp_stack_advance(server->stack, now);
  must(harp_flow_push(flow, message, sizeof message, true) == 0, "no room");
  measure_transmit(client);
  must(server->waiting == BURST, "a burst does not go out at once");
  measure_receive(server);
  measure_answer(server);
  int acknowledgements = client->waiting;
  measure_acknowledge(client);
  return acknowledgements;
}

static uint64_t wall_ns(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv)
{
  static struct host client, server;
  unsigned connections = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
  unsigned rounds = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
  must(connections >= 1 && connections <= 50000 && rounds >= 1,
       "usage: harp-segments CONNECTIONS ROUNDS (1 to 50000 connections)");
  static const struct harp_flow_ops sender;
  static const struct harp_flow_ops accepting = {.accept = let_in};
  struct harp_listener *listener;
  size_t delivered = 0;
  create(&client, &server, 0x0a090001, connections);
  create(&server, &client, 0x0a090002, connections);
  must(harp_flow_listen(server.stack, SERVER_PORT, 64, &accepting, &delivered, &listener) == 0,
       "no listener");
  struct harp_tcp **flows = calloc(connections, sizeof(*flows));
  must(flows != NULL, "no memory");
  struct harp_endpoint peer = {htonl(0x0a090002), SERVER_PORT};
  for (unsigned i = 0; i < connections; i++) {
    uint16_t port = (uint16_t)(CLIENT_PORTS + i);
    must(harp_flow_connect(client.stack, port, peer, &sender, NULL, &flows[i]) == 0, "no flow");
    exchange_all(&client, &server);
    harp_flow_set_harp_peer(flows[i], 5000);
    for (int j = 0; j < WARM_UP; j++) {
      must(harp_flow_push(flows[i], message, sizeof message, true) == 0, "no room");
      exchange_all(&client, &server);
    }
  }
  size_t before = delivered;
  unsigned long acknowledgements = 0;
  uint64_t began = wall_ns();
  for (unsigned i = 0; i < rounds; i++) {
    acknowledgements += (unsigned long)round_trip(&client, &server, flows[i % connections]);
  }
  uint64_t took = wall_ns() - began;
  must(delivered - before == (size_t)rounds * sizeof message, "bytes are missing");
  printf("%lu %lu %lu\n", (unsigned long)rounds * BURST, acknowledgements, (unsigned long)took);
  harp_stack_destroy(client.stack);
  harp_stack_destroy(server.stack);
  free(flows);
  return 0;
}
