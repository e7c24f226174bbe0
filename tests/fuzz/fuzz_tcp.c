/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends segments to live connections, while their owner calls the stack and time passes. A step
 * uses the connection's own terms (its sequence numbers and edges), so that nearly every segment is
 * relevant. Connection 0 was accepted, with all options. Connection 1 was opened to a peer without
 * options. The input opens 2 and 3.
 */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ooo.h"
#include "harp/stack/tcp/tcp_options.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/world.h"

enum { PAYLOAD_MAX = 3000, FRESH = 0x1000 /* the peer's ISN */ };

enum operation {
  STEP_SEGMENT,
  STEP_DATA,   /* in order */
  STEP_ANSWER, /* acknowledges everything sent */
  STEP_TIME,
  STEP_DEADLINE,
  STEP_PUSH,
  STEP_TAKE,
  STEP_CLOSE,
  STEP_ABORT,
  STEP_CONNECT,
  STEP_REFUSE,
  STEP_SETTINGS,
  STEP_TOO_BIG,
  STEP_FLUSH,
  STEP_KINDS
};

enum option_choice {
  WITH_TIMESTAMP = 1,
  WITH_OLD_TIMESTAMP = 2,
  WITH_SACK = 4,
  WITH_SYN_OPTIONS = 8,
  WITH_BAD_OPTION = 16,
  MERGED = 32, /* as if a device had merged segments */
  WHOLE = 64,  /* the payload follows the headers in memory */
  NO_FLUSH = 128,
};

struct step {
  uint8_t kind, target, flags, choice;
  uint16_t length, window;
  uint32_t b, c;
};
_Static_assert(sizeof(struct step) == STEP_SIZE, "an input is a list of them");

static struct world *world;

static int32_t offset(uint32_t word) { return (int32_t)(int16_t)word * (1 << (word >> 16 & 15)); }

/* Returns a sequence number of the peer with a meaning for the stack. */
static uint32_t their_number(const struct harp_tcp *tcp, unsigned choice, uint32_t word)
{
  if (!tcp) {
    return FRESH + (choice ? (uint32_t)offset(word) : 0);
  }
  const uint32_t numbers[8] = {tcp->rcv.nxt,
                               tcp->rcv.nxt + (uint32_t)offset(word),
                               tcp->rcv.right + (uint32_t)offset(word),
                               tcp->rcv.irs,
                               tcp->rcv.irs + 1 + (uint32_t)offset(word),
                               tcp->rcv.fin_seq,
                               tcp->rcv.ooo ? tcp_ooo_block_at(tcp, 0)->end : tcp->rcv.nxt - 1,
                               word};
  return numbers[choice & 7];
}

/* Same, for the stack's own sequence numbers. */
static uint32_t our_number(const struct harp_tcp *tcp, unsigned choice, uint32_t word)
{
  if (!tcp) {
    return word;
  }
  const uint32_t numbers[8] = {tcp->snd.nxt,
                               tcp->snd.una,
                               tcp->snd.una + (uint32_t)offset(word),
                               tcp->snd.nxt + (uint32_t)offset(word),
                               tcp->snd.end,
                               tcp->snd.iss,
                               tcp->flight.first ? tcp->flight.first->end : tcp->snd.una + 1,
                               word};
  return numbers[choice & 7];
}

static uint8_t *syn_options(uint8_t *at, uint16_t mss, uint8_t shift)
{
  const uint8_t options[] = {OPTION_MSS,
                             4,
                             (uint8_t)(mss >> 8),
                             (uint8_t)mss,
                             OPTION_NOP,
                             OPTION_WINDOW_SCALE,
                             3,
                             shift,
                             OPTION_NOP,
                             OPTION_NOP,
                             OPTION_SACK_PERMITTED,
                             2};
  memcpy(at, options, sizeof options);
  return at + sizeof options;
}

/* Two blocks: one from the step's words, one that covers a transmit record. */
static uint8_t *sack_option(uint8_t *at, const struct harp_tcp *tcp, const struct step *step)
{
  uint32_t una = tcp ? tcp->snd.una : 0;
  uint32_t start = our_number(tcp, step->target >> 2 & 7, step->b);
  const struct harp_record *record = tcp && tcp->flight.first ? tcp->flight.first->next : NULL;
  store_be32(at, 0x01010500 + 2 + 16);
  store_be32(at + 4, start);
  store_be32(at + 8, start + (step->c >> 16 & 0x3fff));
  store_be32(at + 12, record ? record->seq : una + (step->b & 0xffff));
  store_be32(at + 16, record ? record->end : una + (step->c & 0xffff));
  return at + 20;
}

static uint8_t write_options(uint8_t *options, const struct harp_tcp *tcp, const struct step *step)
{
  uint8_t *at = options;
  if (step->choice & (WITH_TIMESTAMP | WITH_OLD_TIMESTAMP)) {
    uint32_t recent = tcp ? tcp->ts.recent : 1;
    at = frame_timestamp(at, step->choice & WITH_OLD_TIMESTAMP ? recent - 1 : recent,
                         tcp ? tcp_timestamp(tcp) : 0);
  }
  if (step->choice & WITH_SYN_OPTIONS) {
    at = syn_options(at, step->window, (uint8_t)step->b);
  } else if (step->choice & WITH_SACK) {
    at = sack_option(at, tcp, step);
  }
  if (step->choice & WITH_BAD_OPTION) {
    store_be32(at, step->c);
    at += 4;
  }
  return (uint8_t)(at - options);
}

static void receive(const struct fuzz_segment *segment, uint16_t segment_size, bool whole)
{
  uint8_t bytes[IP_HEADER + TCP_MAX_HEADER + PAYLOAD_MAX];
  struct harp_rx_frame frame = {
      .header = bytes,
      .header_length = frame_tcp_headers(segment, bytes),
      .payload = segment->payload,
      .payload_length = segment->payload_length,
      .segment_size = segment_size,
      .checksum_good = 1,
  };
  if (whole && segment->payload_length) {
    memcpy(bytes + frame.header_length, segment->payload, segment->payload_length);
    frame.header_length += segment->payload_length;
    frame.payload = NULL;
    frame.payload_length = 0;
  }
  harp_stack_receive(world->stack, &frame);
}

static void send_segment(struct connection *connection, const struct step *step, uint32_t seq,
                         uint32_t ack, uint8_t flags)
{
  const struct harp_tcp *tcp = world_find(world, connection);
  struct fuzz_segment segment = {
      .from = WORLD_PEER,
      .to = WORLD_ADDRESS,
      .from_port = (uint16_t)(WORLD_PEER_PORT + (connection - world->connections)),
      .to_port = connection->local_port,
      .seq = seq,
      .ack = ack,
      .window = step->window,
      .flags = flags,
      .payload = pattern_at(seq),
      .payload_length = step->length % PAYLOAD_MAX,
  };
  segment.option_length = write_options(segment.options, tcp, step);
  receive(&segment, step->choice & MERGED ? 536 : 0, step->choice & WHOLE);
  if (!(step->choice & NO_FLUSH)) {
    harp_stack_flush(world->stack);
  }
}

static void segment(struct connection *connection, const struct step *step)
{
  const struct harp_tcp *tcp = world_find(world, connection);
  send_segment(connection, step, their_number(tcp, step->target >> 2, step->b),
               our_number(tcp, step->target >> 5, step->c), step->flags);
}

/* Sends the next segment of a correct peer. */
static void honest(struct connection *connection, const struct step *step, uint16_t length)
{
  const struct harp_tcp *tcp = world_find(world, connection);
  struct step data = *step;
  if (tcp && tcp->state != TCP_SYN_SENT) {
    data.length = length;
    data.choice = (uint8_t)(tcp->timestamps ? WITH_TIMESTAMP : 0) | (step->choice & ~31);
    send_segment(connection, &data, tcp->rcv.nxt, tcp->snd.nxt, FLAG_ACK | FLAG_PSH);
  }
}

static void settings(struct connection *connection, const struct step *step)
{
  struct harp_tcp *tcp = connection->tcp;
  if (!tcp) {
    return;
  }
  switch (step->flags % 5) {
  case 0: harp_flow_set_harp_peer(tcp, 1 + step->b % 1000000); break;
  case 1: harp_flow_set_timeout(tcp, step->b % 100000); break;
  case 2:
    harp_flow_set_keepalive(tcp, step->b % 100000, 1 + step->c % 100000, step->length % 8);
    break;
  case 3: harp_flow_probe(tcp); break;
  default: harp_flow_ready(tcp);
  }
}

/* Sends ICMP "fragmentation needed" about a sent segment. */
static void too_big(struct connection *connection, const struct step *step)
{
  const struct harp_tcp *tcp = world_find(world, connection);
  uint8_t bytes[IP_HEADER + ICMP_HEADER + IP_HEADER + 8], *icmp = bytes + IP_HEADER;
  uint8_t *about = icmp + ICMP_HEADER;
  memset(bytes, 0, sizeof bytes);
  frame_ipv4(WORLD_PEER, WORLD_ADDRESS, IP_PROTOCOL_ICMP, sizeof bytes - IP_HEADER, bytes);
  icmp[ICMP_TYPE] = ICMP_UNREACHABLE;
  icmp[ICMP_CODE] = step->flags ? step->flags : ICMP_CODE_TOO_BIG;
  store_be16(icmp + ICMP_NEXT_MTU, step->window);
  frame_ipv4(WORLD_ADDRESS, WORLD_PEER, IP_PROTOCOL_TCP, step->length, about);
  store_be16(about + IP_HEADER + TCP_SOURCE, connection->local_port);
  store_be16(about + IP_HEADER + TCP_DEST,
             (uint16_t)(WORLD_PEER_PORT + (connection - world->connections)));
  store_be32(about + IP_HEADER + TCP_SEQUENCE, our_number(tcp, step->target >> 5, step->c));
  frame_mend(bytes, sizeof bytes);
  world_receive(world, bytes, sizeof bytes, sizeof bytes);
}

static void push(struct connection *connection, const struct step *step)
{
  if (!connection->tcp) {
    return;
  }
  if (step->choice & 1) {
    connection->to_pull += step->length;
    harp_flow_ready(connection->tcp);
  } else {
    world_push(connection, step->length, step->choice & 2);
  }
  harp_stack_flush(world->stack);
}

static void take(struct connection *connection, const struct step *step)
{
  world->takes = step->b;
  if (connection->tcp) {
    harp_flow_resume(connection->tcp);
    harp_stack_flush(world->stack);
  }
}

static void run(const struct step *step)
{
  struct connection *connection = &world->connections[step->target % WORLD_CONNECTIONS];
  switch (step->kind % STEP_KINDS) {
  case STEP_SEGMENT: segment(connection, step); break;
  case STEP_DATA:
    for (unsigned i = 0; i <= step->flags % 8u; i++) {
      honest(connection, step, step->length);
    }
    break;
  case STEP_ANSWER: honest(connection, step, 0); break;
  case STEP_TIME: world_advance(world, world->now + ((uint64_t)step->b << step->flags % 10)); break;
  case STEP_DEADLINE:
    if (harp_stack_next_deadline(world->stack) != UINT64_MAX) {
      world_advance(world, harp_stack_next_deadline(world->stack));
    }
    break;
  case STEP_PUSH: push(connection, step); break;
  case STEP_TAKE: take(connection, step); break;
  case STEP_CLOSE:
    if (connection->tcp) {
      harp_flow_close(connection->tcp);
    }
    break;
  case STEP_ABORT:
    if (connection->tcp) {
      harp_flow_abort(connection->tcp);
      connection->tcp = NULL;
    }
    break;
  case STEP_CONNECT: world_connect(world, connection); break;
  case STEP_REFUSE: world->refuses = step->flags; break;
  case STEP_SETTINGS: settings(connection, step); break;
  case STEP_TOO_BIG: too_big(connection, step); break;
  default: harp_stack_flush(world->stack);
  }
}

/* Completes a handshake that the peer begins. */
static void shake_hands(struct connection *connection, uint8_t choice)
{
  struct step step = {.window = 1460, .choice = choice, .b = 7};
  send_segment(connection, &step, FRESH, 0, FLAG_SYN);
  step.choice &= (uint8_t)~WITH_SYN_OPTIONS;
  const struct harp_tcp *tcp = world_find(world, connection);
  send_segment(connection, &step, FRESH + 1, tcp->snd.nxt, FLAG_ACK);
  FUZZ_EXPECT(connection->tcp && connection->tcp->state == TCP_ESTABLISHED);
}

static void be_answered(struct connection *connection)
{
  struct step step = {.window = 20000};
  world_connect(world, connection);
  harp_stack_flush(world->stack);
  send_segment(connection, &step, FRESH, connection->tcp->snd.iss + 1, FLAG_SYN | FLAG_ACK);
  FUZZ_EXPECT(connection->tcp && connection->tcp->state == TCP_ESTABLISHED);
}

static void set_up(void)
{
  world = world_create(HARP_LINK_IP);
  shake_hands(&world->connections[0], WITH_TIMESTAMP | WITH_SYN_OPTIONS);
  be_answered(&world->connections[1]);
  for (int i = 0; i < 2; i++) {
    world_push(&world->connections[i], 6000, false);
    harp_stack_flush(world->stack);
    world_push(&world->connections[i], 4000, true);
    harp_stack_flush(world->stack);
  }
  world_check(world);
}

static void one_step(const void *bytes)
{
  struct step step;
  memcpy(&step, bytes, sizeof step);
  run(&step);
  world_check(world);
}

static void end(void) { world_end(world); }

const struct steps_target steps_target = {
    .most = 64, .set_up = set_up, .step = one_step, .end = end};
