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

static struct harp_endpoint source_of(const struct fault_frame *frame)
{
  return (struct harp_endpoint){load_address(frame->bytes + IP_SRC),
                                load_be16(tcp_of(frame) + TCP_SOURCE)};
}

static struct harp_endpoint dest_of(const struct fault_frame *frame)
{
  return (struct harp_endpoint){load_address(frame->bytes + IP_DST),
                                load_be16(tcp_of(frame) + TCP_DEST)};
}

static bool same_end(struct harp_endpoint a, struct harp_endpoint b)
{
  return a.address == b.address && a.port == b.port;
}

/* Returns true if the frame's connection loses all frames in this direction. */
static bool is_blackholed(const struct fault_frame *frame, unsigned from)
{
  for (unsigned i = 0; i < world.tuple_count; i++) {
    const struct tuple *tuple = &world.tuples[i];
    if (tuple->directions & 1u << from && same_end(tuple->ends[from], source_of(frame)) &&
        same_end(tuple->ends[!from], dest_of(frame))) {
      return true;
    }
  }
  return false;
}

/* Returns true if no NIC of the side passes frames with the address. */
static bool is_off(const struct side *side, uint32_t address)
{
  unsigned nic = nic_of_address(side, address);
  return nic == side->setup.nics || side->off_until[nic] > world.now;
}

static void transmit(unsigned from, const struct harp_tx_frame *sent)
{
  struct fault_lane *lane = &world.lanes[!from];
  struct fault_frame *frame = copy_of(sent);
  struct fault_spec faults = world.faults;
  frame->segment_size = sent->length - sent->header_length > sent->segment_size ? sent->segment_size
                                                                                : 0;
  world.frames++;
  faults.blackhole = world.sides[from].gone || is_blackholed(frame, from) ||
                     is_off(&world.sides[from], source_of(frame).address);
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
static void a_starts(void) { side_starts_thread(0); }
static void b_starts(void) { side_starts_thread(1); }

const struct process_calls side_calls[SIDES] = {
    {a_transmits, a_sleeps, a_says, a_preempts, a_starts},
    {b_transmits, b_sleeps, b_says, b_preempts, b_starts},
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
      .from = dest_of(frame).address,
      .to = source_of(frame).address,
      .from_port = dest_of(frame).port,
      .to_port = source_of(frame).port,
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
  world.faults.rate_mbps = world.settings.rate_mbps;
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

/* Returns the queue that receives the frames for this end. */
static unsigned queue_of(const struct side *side, struct harp_endpoint end)
{
  unsigned instance = end.port % HOST_INSTANCES;
  return nic_of_address(side, end.address) * side->setup.instances +
         (instance < side->setup.instances ? instance : 0);
}

static void receive(struct side *side, const struct fault_frame *frame)
{
  struct host_frame *in = side->api->frame(queue_of(side, dest_of(frame)), frame->header_length,
                                           frame->length - frame->header_length);
  if (in) { /* NULL: the ring is full and the frame is lost */
    memcpy(in->bytes, frame->bytes, frame->length);
    in->segment_size = frame->segment_size;
    in->checksum_good = true;
    in->scattered = world.settings.scatter;
  }
}

void wire_deliver(void)
{
  unsigned to = next_side();
  struct fault_frame *frame = harp_fault_due(&world.lanes[to], world.now);
  struct side *side = &world.sides[to];
  harp_fault_remove(&world.lanes[to], frame);
  bool arrives = !is_off(side, dest_of(frame).address);
  if (arrives && side->gone) {
    reset_from_kernel(frame, to);
  } else if (arrives && side_has_queue(side, queue_of(side, dest_of(frame)))) {
    receive(side, frame);
  }
  free(frame);
}

/* Returns the flow of a line at one of its ends. NULL: it has no connection. */
static const struct link_flow *connected(const struct line *line, unsigned kind, unsigned number)
{
  const struct net_link *link = line->roles[kind].link;
  const struct link_flow *flow = link ? link->flows[number % link->flow_count] : NULL;
  return flow && flow->tcp ? flow : NULL;
}

/* Stores the ends of a flow's connection, of the flow's side first. */
static void find_ends(const struct link_flow *flow, const struct side *side,
                      struct harp_endpoint ends[SIDES])
{
  ends[0] = (struct harp_endpoint){flow->at->nic->engine->port->info.address,
                                   side->api->local_port(flow->tcp)};
  ends[1] = side->api->peer(flow->tcp);
}

bool wire_blackhole(const struct line *line, unsigned flow, unsigned directions)
{
  const struct link_flow *of = connected(line, SENDER, flow);
  if (!of || world.tuple_count == TUPLES) {
    return false;
  }
  struct tuple *tuple = &world.tuples[world.tuple_count++];
  struct harp_endpoint ends[SIDES];
  find_ends(of, &world.sides[line->from], ends);
  tuple->ends[line->from] = ends[0];
  tuple->ends[!line->from] = ends[1];
  tuple->directions = directions;
  return true;
}

bool wire_reset(const struct line *line, unsigned flow, unsigned side)
{
  const struct link_flow *of = connected(line, side == line->from ? SENDER : RECEIVER, flow);
  if (!of || world.sides[side].gone) {
    return false;
  }
  struct harp_endpoint ends[SIDES];
  find_ends(of, &world.sides[side], ends);
  struct fuzz_segment reset = {
      .from = ends[1].address,
      .to = ends[0].address,
      .from_port = ends[1].port,
      .to_port = ends[0].port,
      .seq = of->tcp->rcv.nxt,
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
