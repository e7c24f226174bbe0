/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of idle connections: many connections between two stacks, in virtual time.
 * Usage: harp-idle CONNECTIONS. Prints lines of a name and a number. Exit status 1: a check failed.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harp/stack/bytes.h"
#include "harp/stack/packet.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

enum { FRAME_MOST = 128, PORT = 7000, AT_ONCE = 1000 /* handshakes */ };

/* Frames on their way to a stack. Handshakes run in batches, so that few frames wait. */
struct wire {
  struct harp_stack *to;
  uint32_t count;
  uint64_t carried;
  struct {
    uint32_t length;
    uint8_t data[FRAME_MOST];
  } frames[4 * AT_ONCE];
};

static struct wire wires[2]; /* to the client, to the server */
static uint32_t established, accepted, answered;
static uint8_t byte = 1;

static int transmit(void *user, const struct harp_tx_frame *frame)
{
  struct wire *wire = user;
  if (wire->count == sizeof wire->frames / sizeof *wire->frames || frame->length > FRAME_MOST) {
    return -EAGAIN;
  }
  uint8_t *data = wire->frames[wire->count].data;
  for (int i = 0; i < frame->iov_count; i++) {
    memcpy(data, frame->iov[i].iov_base, frame->iov[i].iov_len);
    data += frame->iov[i].iov_len;
  }
  wire->frames[wire->count++].length = frame->length;
  return 0;
}

static void on_established(void *user, struct harp_tcp *tcp)
{
  (void)user, (void)tcp;
  established++;
}

static size_t on_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  (void)user, (void)tcp, (void)data;
  answered += (uint32_t)length;
  return length;
}

static const struct harp_flow_ops client_ops = {.established = on_established};
static const struct harp_flow_ops server_ops = {.deliver = on_deliver};

static int on_accept(void *user, struct harp_tcp *tcp)
{
  harp_flow_attach(tcp, &server_ops, user);
  accepted++;
  return 0;
}

static const struct harp_flow_ops listener_ops = {.accept = on_accept};

/* Delivers frames until none is on its way. */
static void carry(void)
{
  while (wires[0].count || wires[1].count) {
    for (int i = 0; i < 2; i++) {
      struct wire *wire = &wires[i];
      uint32_t count = wire->count;
      wire->count = 0;
      wire->carried += count;
      for (uint32_t k = 0; k < count; k++) {
        struct harp_rx_frame frame = {.header = wire->frames[k].data,
                                      .header_length = wire->frames[k].length};
        harp_stack_receive(wire->to, &frame);
      }
      harp_stack_flush(wire->to);
    }
  }
}

/* Runs all timers of both stacks up to a time, ns. Returns the number of frames sent. */
static uint64_t pass(uint64_t until)
{
  uint64_t before = wires[0].carried + wires[1].carried;
  for (;;) {
    uint64_t next = HARP_MIN(harp_stack_next_deadline(wires[0].to),
                             harp_stack_next_deadline(wires[1].to));
    uint64_t now = HARP_MIN(next, until);
    harp_stack_advance(wires[0].to, now);
    harp_stack_advance(wires[1].to, now);
    carry();
    if (next > until) {
      return wires[0].carried + wires[1].carried - before;
    }
  }
}

static long resident(void)
{
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*d %ld", &pages) != 1) {
    pages = 0;
  }
  if (file) {
    fclose(file);
  }
  return pages * sysconf(_SC_PAGESIZE);
}

static struct harp_stack *create(const char *address, uint32_t connections, struct wire *out)
{
  struct harp_stack_config config;
  harp_stack_config_default(&config);
  config.address = inet_addr(address);
  /* an eighth is reserved for connections opened by this host */
  config.max_connections = connections * 8 / 7 + 8;
  config.packets = 1024;
  config.seed[0] = config.address;
  struct harp_stack_io io = {.transmit = transmit, .user = out};
  struct harp_stack *stack = NULL;
  return harp_stack_create_io(&stack, &config, &io) == 0 ? stack : NULL;
}

static uint32_t used(const struct harp_pool *pool) { return pool->total - pool->available; }

/* Returns the objects that a stack's idle connections hold, apart from their blocks. */
static uint32_t held(const struct harp_stack *stack)
{
  return used(&stack->packets) + used(&stack->references) + used(&stack->records);
}

static bool open_all(uint32_t connections, struct harp_tcp **flows)
{
  struct harp_endpoint peer = {inet_addr("192.0.2.2"), PORT};
  struct harp_listener *listener;
  if (harp_flow_listen(wires[1].to, PORT, AT_ONCE, &listener_ops, NULL, &listener) != 0) {
    return false;
  }
  for (uint32_t i = 0; i < connections; i++) {
    if (harp_flow_connect(wires[0].to, 0, peer, &client_ops, NULL, &flows[i]) != 0) {
      return false;
    }
    if (i % AT_ONCE == AT_ONCE - 1 || i == connections - 1) {
      harp_stack_flush(wires[0].to);
      carry();
    }
  }
  return established == connections && accepted == connections;
}

/* Sends a byte on every connection, to check that all still work. */
static bool use_all(uint32_t connections, struct harp_tcp **flows)
{
  for (uint32_t i = 0; i < connections; i++) {
    if (harp_flow_push(flows[i], &byte, 1, true) != 0) {
      return false;
    }
    if (i % AT_ONCE == AT_ONCE - 1 || i == connections - 1) {
      harp_stack_flush(wires[0].to);
      carry();
    }
  }
  pass(wires[0].to->now + NS_PER_S);
  return answered == connections;
}

int main(int argc, char **argv)
{
  uint32_t connections = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
  struct harp_tcp **flows = calloc(connections, sizeof(struct harp_tcp *));
  wires[0].to = create("192.0.2.1", connections, &wires[1]);
  long before = resident();
  wires[1].to = create("192.0.2.2", connections, &wires[0]);
  if (connections == 0 || !flows || !wires[0].to || !wires[1].to) {
    return 2;
  }
  harp_stack_set_time(wires[0].to, 1000 * NS_PER_S);
  harp_stack_set_time(wires[1].to, 1000 * NS_PER_S);
  bool good = open_all(connections, flows);
  pass(wires[0].to->now + NS_PER_S); /* for delayed acknowledgements */
  uint64_t chatter = pass(wires[0].to->now + 3600 * NS_PER_S);
  long block = (long)wires[1].to->connections.size;
  /* independent of the number of connections */
  long common = 1024l * HARP_PACKET_SIZE + (long)sizeof *wires[1].to;
  long blocks = block * (long)wires[1].to->connections.total;
  long beside = (resident() - before - common - blocks) / (long)connections;
  printf("connections %u\nblock_bytes %ld\nbeside_bytes %ld\n", accepted, block, beside);
  printf("held %u\nframes_in_an_hour %lu\n", held(wires[0].to) + held(wires[1].to), chatter);
  good &= use_all(connections, flows);
  printf("answered %u\nheld_after %u\n", answered, held(wires[0].to) + held(wires[1].to));
  harp_stack_destroy(wires[0].to);
  harp_stack_destroy(wires[1].to);
  free(flows);
  return good ? 0 : 1;
}
