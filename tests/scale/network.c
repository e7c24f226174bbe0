/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scale/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"

enum {
  RING = 1 << 16,
  BACKLOG = 256,
  PACKETS = 256,
  EVERYWHERE = 61, /* one in this many broadcasts reaches all hosts */
};
#define DELAY 10000ull

struct network network;

/* Frames on their way, in the order of arrival. */
static struct {
  uint64_t arrives;
  uint32_t length;
  uint8_t data[FRAME_MOST];
} *ring;
static uint64_t ring_head, ring_tail;
static struct end *accepted;
static const uint8_t message[MESSAGE];

static void must(bool good, const char *what)
{
  if (!good) {
    fprintf(stderr, "many-hosts: %s\n", what);
    exit(2);
  }
}

uint32_t address_of(uint32_t index) { return __builtin_bswap32(0x0a000001u + index); }

void mac_of(uint32_t index, uint8_t mac[6])
{
  const uint8_t bytes[6] = {2, 0, 0, (uint8_t)(index >> 16), (uint8_t)(index >> 8), (uint8_t)index};
  memcpy(mac, bytes, 6);
}

void network_send(const uint8_t *frame, uint32_t length)
{
  must(ring_head - ring_tail < RING && length <= FRAME_MOST, "too many frames are on their way");
  uint64_t at = ring_head++ % RING;
  ring[at].arrives = network.now + DELAY;
  ring[at].length = length;
  memcpy(ring[at].data, frame, length);
}

static int transmit(void *user, const struct harp_tx_frame *frame)
{
  uint8_t whole[FRAME_MOST];
  uint32_t length = 0;
  must(frame->length <= FRAME_MOST, "a frame is larger than any message");
  for (int i = 0; i < frame->iov_count; i++) {
    memcpy(whole + length, frame->iov[i].iov_base, frame->iov[i].iov_len);
    length += (uint32_t)frame->iov[i].iov_len;
  }
  network_send(whole, length);
  return 0;
}

/* --- Links --- */

static void send_message(struct end *end)
{
  must(harp_flow_push(end->tcp, message, MESSAGE, true) == 0, "no room for a message");
}

static void established(void *user, struct harp_tcp *tcp)
{
  harp_flow_set_harp_peer(tcp, 5000);
  send_message(user);
}

static size_t deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  struct end *end = user;
  end->received += (uint32_t)length;
  if (end->received < MESSAGE) {
    return length;
  }
  end->received -= MESSAGE;
  if (!end->connects) {
    send_message(end);
  } else {
    uint64_t took = network.now - end->began;
    network.longest = HARP_MAX(network.longest, took);
    network.talks++;
    end->began = 0;
  }
  return length;
}

static void closed(void *user, struct harp_tcp *tcp, int error)
{
  struct end *end = user;
  end->tcp = NULL;
  network.failed += end->connects;
}

static const struct harp_flow_ops ops = {
    .established = established, .deliver = deliver, .closed = closed};

static int accept_there(void *user, struct harp_tcp *tcp)
{
  struct end *end = calloc(1, sizeof *end);
  must(end != NULL, "no memory");
  *end = (struct end){.host = user, .tcp = tcp, .next = accepted};
  accepted = end;
  harp_flow_attach(tcp, &ops, end);
  harp_flow_set_harp_peer(tcp, 5000);
  return 0;
}

static const struct harp_flow_ops listening = {.accept = accept_there};

void link_open(struct end *end, struct host *from, const struct host *to, uint16_t port)
{
  struct harp_endpoint peer = {address_of(to->index), port};
  *end = (struct end){.host = from, .began = network.now, .connects = true};
  harp_stack_set_time(from->stack, network.now);
  if (harp_flow_connect(from->stack, 0, peer, &ops, end, &end->tcp) != 0) {
    network.failed++;
  }
  harp_stack_flush(from->stack);
}

void link_talk(struct end *end)
{
  end->began = network.now;
  harp_stack_set_time(end->host->stack, network.now);
  if (end->tcp) {
    send_message(end);
    harp_stack_flush(end->host->stack);
  }
}

void link_abort(struct end *end)
{
  if (end->tcp) {
    harp_flow_abort(end->tcp);
    end->tcp = NULL;
  }
}

/* --- The network --- */

static void create(struct host *host, uint32_t connections)
{
  struct harp_stack_config config;
  harp_stack_config_default(&config);
  config.link = HARP_LINK_ETHERNET;
  config.address = address_of(host->index);
  mac_of(host->index, config.mac);
  config.prefix = 8;
  config.max_connections = connections;
  config.packets = PACKETS;
  config.rto_initial_us = 200000; /* like an instance's */
  config.seed[0] = config.seed[1] = 1 + host->index;
  struct harp_stack_io io = {.user = host,
                             .transmit = transmit,
                             .offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_RX_CHECKSUM};
  must(harp_stack_create_io(&host->stack, &config, &io) == 0, "no memory for a stack");
  harp_stack_set_time(host->stack, network.now);
  for (uint16_t port = PORT; port < PORT + network.ports; port++) {
    struct harp_listener *listener;
    must(harp_flow_listen(host->stack, port, BACKLOG, &listening, host, &listener) == 0,
         "cannot listen");
  }
}

void network_create(uint32_t hosts, uint32_t connections, uint32_t ports)
{
  network = (struct network){.count = hosts, .ports = ports, .now = 1000000 * MS};
  network.hosts = calloc(hosts, sizeof *network.hosts);
  ring = calloc(RING, sizeof *ring);
  must(network.hosts && ring, "no memory");
  for (uint32_t i = 0; i < hosts; i++) {
    network.hosts[i].index = (uint16_t)i;
    create(&network.hosts[i], connections);
  }
}

void network_destroy(void)
{
  for (uint32_t i = 0; i < network.count; i++) {
    harp_stack_destroy(network.hosts[i].stack);
  }
  while (accepted) {
    struct end *end = accepted;
    accepted = end->next;
    free(end);
  }
  free(network.hosts);
  free(ring);
}

static void hand_over(struct host *host, const uint8_t *data, uint32_t length)
{
  struct harp_rx_frame frame = {.header = data, .header_length = length, .checksum_good = true};
  harp_stack_set_time(host->stack, network.now);
  harp_stack_receive(host->stack, &frame);
  harp_stack_flush(host->stack);
}

/* Delivers to the host with that MAC address, or to all except the sender. Reading broadcasts
 * would take most of the time with a thousand hosts, because an ARP request for another host has
 * no effect. So most broadcasts reach only the host that they ask for. */
static void arrive(const uint8_t *data, uint32_t length)
{
  static uint64_t broadcasts;
  uint32_t from = (uint32_t)data[ETH_SRC + 3] << 16 | load_be16(data + ETH_SRC + 4);
  uint32_t to = (uint32_t)data[ETH_DST + 3] << 16 | load_be16(data + ETH_DST + 4);
  if ((data[ETH_DST] & 1) && ++broadcasts % EVERYWHERE != 0) {
    to = __builtin_bswap32(load_address(data + ETH_HEADER + ARP_TARGET_IP)) -
         __builtin_bswap32(address_of(0));
  } else if (data[ETH_DST] & 1) {
    to = UINT32_MAX;
    for (uint32_t i = 0; i < network.count; i++) {
      if (i != from) {
        hand_over(&network.hosts[i], data, length);
      }
    }
  }
  if (to < network.count) {
    hand_over(&network.hosts[to], data, length);
  }
}

static void carry(uint64_t until)
{
  while (ring_tail < ring_head && ring[ring_tail % RING].arrives <= until) {
    uint64_t at = ring_tail % RING;
    uint8_t data[FRAME_MOST];
    uint32_t length = ring[at].length;
    memcpy(data, ring[at].data, length);
    network.now = ring[at].arrives;
    ring_tail++;
    arrive(data, length);
  }
}

void network_run(uint64_t until)
{
  while (network.now < until) {
    uint64_t next = HARP_MIN(until, (network.now / MS + 1) * MS);
    carry(next);
    network.now = next;
    for (uint32_t i = 0; i < network.count; i++) {
      if (harp_stack_next_deadline(network.hosts[i].stack) <= next) {
        harp_stack_advance(network.hosts[i].stack, next);
      }
    }
  }
}

uint64_t network_sum(enum harp_counter counter)
{
  uint64_t sum = 0;
  for (uint32_t i = 0; i < network.count; i++) {
    sum += harp_stack_counters(network.hosts[i].stack)[counter];
  }
  return sum;
}
