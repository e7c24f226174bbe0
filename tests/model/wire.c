/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between the two processes. */
#include <stdlib.h>
#include <string.h>

#include "harp/stack/bytes.h"
#include "harp/stack/headers.h"
#include "tests/fuzz/frames.h"
#include "tests/model/links.h"

static const uint8_t *tcp_of(const struct wire_frame *frame) { return frame->bytes + IP_HEADER; }

static uint8_t flags_of(const struct wire_frame *frame) { return tcp_of(frame)[TCP_FLAG_BYTE]; }

/* Inserts by arrival time; frames of equal time keep the order of sending. */
static void put(struct wire_frame *frame)
{
  struct wire_frame **at = &world.wire;
  frame->arrives = world.now + world.settings.delay_us * 1000;
  while (*at && (*at)->arrives <= frame->arrives) {
    at = &(*at)->next;
  }
  frame->next = *at;
  *at = frame;
}

static struct wire_frame *frame_new(unsigned to, uint32_t header_length, uint32_t length)
{
  struct wire_frame *frame = malloc(sizeof *frame + length);
  if (!frame) {
    abort();
  }
  *frame = (struct wire_frame){.to = to, .header_length = header_length, .length = length};
  return frame;
}

static bool swallowed(const struct wire_frame *frame)
{
  unsigned from = !frame->to;
  uint16_t source = load_be16(tcp_of(frame) + TCP_SOURCE);
  uint16_t dest = load_be16(tcp_of(frame) + TCP_DEST);
  for (unsigned i = 0; i < world.tuple_count; i++) {
    const struct tuple *tuple = &world.tuples[i];
    if (tuple->directions & 1u << from && tuple->port[from] == source &&
        tuple->port[frame->to] == dest) {
      return true;
    }
  }
  return false;
}

/* Spares handshakes, because a lost SYN costs a second. */
static bool lost(const struct wire_frame *frame)
{
  return !(flags_of(frame) & FLAG_SYN) && random_below(&world.random, 1000) < world.settings.loss;
}

static void hears(unsigned from, const struct harp_tx_frame *sent)
{
  struct wire_frame *frame = frame_new(!from, sent->header_length, sent->length);
  uint32_t at = 0;
  for (unsigned i = 0; i < sent->iov_count; i++) {
    memcpy(frame->bytes + at, sent->iov[i].iov_base, sent->iov[i].iov_len);
    at += (uint32_t)sent->iov[i].iov_len;
  }
  frame->segment_size = sent->length - sent->header_length > sent->segment_size ? sent->segment_size
                                                                                : 0;
  world.frames++;
  if (world.sides[from].gone || swallowed(frame) || lost(frame)) {
    free(frame);
    return;
  }
  put(frame);
}

static void a_hears(unsigned queue, const struct harp_tx_frame *frame) { hears(0, frame); }
static void b_hears(unsigned queue, const struct harp_tx_frame *frame) { hears(1, frame); }

static void sleeps(unsigned side, uint64_t ns)
{
  bool was = world.sides[side].busy;
  world.sides[side].busy = true;
  world_run(world.now + ns);
  world.sides[side].busy = was;
}

static void a_sleeps(uint64_t ns) { sleeps(0, ns); }
static void b_sleeps(uint64_t ns) { sleeps(1, ns); }
static void a_says(bool warning, const char *text) { side_says(0, warning, text); }
static void b_says(bool warning, const char *text) { side_says(1, warning, text); }

const struct process_calls side_calls[SIDES] = {
    {.hears = a_hears, .sleeps = a_sleeps, .says = a_says},
    {.hears = b_hears, .sleeps = b_sleeps, .says = b_says},
};

static void say_reset(const struct fuzz_segment *segment, unsigned to)
{
  uint8_t bytes[IP_HEADER + TCP_HEADER];
  uint32_t length = frame_tcp_headers(segment, bytes);
  struct wire_frame *frame = frame_new(to, length, length);
  memcpy(frame->bytes, bytes, length);
  put(frame);
}

/* Answers a segment to an ended process with a reset, like a kernel. */
static void answer_for_the_gone(const struct wire_frame *frame)
{
  const uint8_t *tcp = tcp_of(frame);
  uint8_t flags = flags_of(frame);
  bool acks = flags & FLAG_ACK;
  uint32_t header = IP_HEADER + (uint32_t)(tcp[TCP_OFFSET] >> 4) * 4;
  uint32_t next = load_be32(tcp + TCP_SEQUENCE) + (frame->length - header) + !!(flags & FLAG_SYN) +
                  !!(flags & FLAG_FIN);
  if (!world.settings.kernel || flags & FLAG_RST) {
    return;
  }
  struct fuzz_segment reset = {
      .from = load_address(frame->bytes + IP_DST),
      .to = load_address(frame->bytes + IP_SRC),
      .from_port = load_be16(tcp + TCP_DEST),
      .to_port = load_be16(tcp + TCP_SOURCE),
      .seq = acks ? load_be32(tcp + TCP_ACKNOWLEDGEMENT) : 0,
      .ack = acks ? 0 : next,
      .flags = acks ? FLAG_RST : FLAG_RST | FLAG_ACK,
  };
  say_reset(&reset, !frame->to);
}

struct wire_frame *wire_next(void) { return world.wire; }

void wire_deliver(void)
{
  struct wire_frame *frame = world.wire;
  struct side *side = &world.sides[frame->to];
  world.wire = frame->next;
  if (side->gone) {
    answer_for_the_gone(frame);
    free(frame);
    return;
  }
  unsigned queue = load_be16(tcp_of(frame) + TCP_DEST) % HOST_INSTANCES;
  queue = queue < side->setup.instances ? queue : 0;
  struct host_frame *in = side->api->frame(queue, frame->header_length,
                                           frame->length - frame->header_length);
  if (in) { /* NULL: the ring is full and the frame is lost */
    memcpy(in->bytes, frame->bytes, frame->length);
    in->segment_size = frame->segment_size;
    in->checksum_good = true;
    in->scattered = world.settings.scatter;
  }
  free(frame);
}

/* Returns the connection of a line's flow at one of its ends. */
static const struct harp_tcp *connection(const struct line *line, unsigned kind, unsigned flow)
{
  const struct net_link *link = line->roles[kind].link;
  const struct link_flow *of = link ? link->flows[flow % link->flow_count] : NULL;
  return of ? of->tcp : NULL;
}

bool wire_swallow(const struct line *line, unsigned flow, unsigned directions)
{
  const struct harp_tcp *tcp = connection(line, SENDER, flow);
  if (!tcp || world.tuple_count == TUPLES) {
    return false;
  }
  struct tuple *tuple = &world.tuples[world.tuple_count++];
  const struct process_api *api = world.sides[line->from].api;
  tuple->port[line->from] = api->local_port(tcp);
  tuple->port[!line->from] = api->peer(tcp).port;
  tuple->directions = directions;
  return true;
}

bool wire_reset(const struct line *line, unsigned flow, unsigned side)
{
  const struct harp_tcp *tcp = connection(line, side == line->from ? SENDER : RECEIVER, flow);
  if (!tcp || world.sides[side].gone) {
    return false;
  }
  const struct process_api *api = world.sides[side].api;
  struct fuzz_segment reset = {
      .from = world.sides[!side].setup.address,
      .to = world.sides[side].setup.address,
      .from_port = api->peer(tcp).port,
      .to_port = api->local_port(tcp),
      .seq = tcp->rcv.nxt,
      .flags = FLAG_RST,
  };
  say_reset(&reset, side);
  return true;
}

void wire_clear(void)
{
  while (world.wire) {
    struct wire_frame *next = world.wire->next;
    free(world.wire);
    world.wire = next;
  }
}
