/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between the two processes, each direction in a lane of the fault port. */
#include <stdlib.h>
#include <string.h>

#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "tests/fuzz/frames.h"
#include "tests/model/links.h"

static const uint8_t *tcp_of(const struct fault_frame *frame) { return frame->bytes + IP_HEADER; }

static uint8_t flags_of(const struct fault_frame *frame) { return tcp_of(frame)[TCP_FLAG_BYTE]; }

static struct fault_frame *copy_of(const struct harp_tx_frame *sent)
{
  struct fault_frame *frame = harp_fault_copy_tx(sent);
  if (!frame) {
    abort();
  }
  return frame;
}

/* Returns true if the frame's connection loses all frames in this direction. */
static bool is_blackholed(const struct fault_frame *frame, unsigned from)
{
  uint16_t source = load_be16(tcp_of(frame) + TCP_SOURCE);
  uint16_t dest = load_be16(tcp_of(frame) + TCP_DEST);
  for (unsigned i = 0; i < world.tuple_count; i++) {
    const struct tuple *tuple = &world.tuples[i];
    if (tuple->directions & 1u << from && tuple->port[from] == source &&
        tuple->port[!from] == dest) {
      return true;
    }
  }
  return false;
}

static void transmit(unsigned from, const struct harp_tx_frame *sent)
{
  struct fault_lane *lane = &world.lanes[!from];
  struct fault_frame *frame = copy_of(sent);
  struct fault_spec faults = world.faults;
  frame->segment_size = sent->length - sent->header_length > sent->segment_size ? sent->segment_size
                                                                                : 0;
  world.frames++;
  faults.blackhole = world.sides[from].gone || is_blackholed(frame, from);
  if (flags_of(frame) & FLAG_SYN) {
    faults.drop = 0; /* a lost SYN costs a second */
  }
  struct fault_verdict verdict = harp_fault_judge(lane, &faults, frame->length, world.now);
  if (verdict.drop) {
    free(frame);
  } else {
    harp_fault_hold(lane, frame, &verdict);
  }
}

/* The wire's own writes do not count. */
static void leave_process(unsigned from, const struct harp_tx_frame *frame)
{
  unsigned phase = world_phase(0);
  transmit(from, frame);
  world_phase(phase);
}

static void a_transmits(unsigned queue, const struct harp_tx_frame *frame)
{
  leave_process(0, frame);
}

static void b_transmits(unsigned queue, const struct harp_tx_frame *frame)
{
  leave_process(1, frame);
}

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
static void a_preempts(void) { side_preempts(0); }
static void b_preempts(void) { side_preempts(1); }

const struct process_calls side_calls[SIDES] = {
    {.on_transmit = a_transmits, .sleeps = a_sleeps, .says = a_says, .preempts = a_preempts},
    {.on_transmit = b_transmits, .sleeps = b_sleeps, .says = b_says, .preempts = b_preempts},
};

static void send_reset(const struct fuzz_segment *segment, unsigned to)
{
  uint8_t bytes[IP_HEADER + TCP_HEADER];
  uint32_t length = frame_tcp_headers(segment, bytes);
  struct iovec iov = {bytes, length};
  struct harp_tx_frame sent = {
      .iov = &iov, .iov_count = 1, .header_length = (uint16_t)length, .length = length};
  struct fault_verdict passes = {.due_ns = world.now + world.faults.delay_us * 1000};
  harp_fault_hold(&world.lanes[to], copy_of(&sent), &passes);
}

/* Answers a segment to an ended process with a reset, like a kernel. */
static void reset_from_kernel(const struct fault_frame *frame, unsigned gone)
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
  send_reset(&reset, !gone);
}

void wire_open(void)
{
  harp_fault_spec_default(&world.faults);
  world.faults.delay_us = world.settings.delay_us;
  world.faults.drop = (world.settings.loss << 32) / 1000;
  for (unsigned i = 0; i < SIDES; i++) {
    harp_fault_lane_init(&world.lanes[i], world.settings.seed, i);
  }
}

/* Returns the side that receives the next frame. */
static unsigned next_side(void)
{
  return harp_fault_next_due(&world.lanes[1]) < harp_fault_next_due(&world.lanes[0]);
}

uint64_t wire_next(void) { return harp_fault_next_due(&world.lanes[next_side()]); }

void wire_deliver(void)
{
  unsigned to = next_side();
  struct fault_frame *frame = harp_fault_due(&world.lanes[to], world.now);
  struct side *side = &world.sides[to];
  harp_fault_remove(&world.lanes[to], frame);
  if (side->gone) {
    reset_from_kernel(frame, to);
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

bool wire_blackhole(const struct line *line, unsigned flow, unsigned directions)
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
  send_reset(&reset, side);
  return true;
}

void wire_clear(void)
{
  for (unsigned i = 0; i < SIDES; i++) {
    harp_fault_lane_clear(&world.lanes[i]);
  }
}
