/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules for frames on the wire: no payload beyond the advertised window, no right window edge that
 * moves back, no packet above the MTU. This file reads only frames, so it does not depend on the
 * stacks' state.
 */
#include "harp/headers.h"
#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "tests/sim/sim.h"

struct headers {
  uint32_t seq, ack, payload;
  uint16_t source_port, target_port, window;
  uint8_t flags;
};

static bool read_headers(const struct sim_frame *frame, struct headers *headers)
{
  const uint8_t *tcp = frame->data + IP_HEADER;
  if (frame->data[IP_PROTOCOL] != IP_PROTOCOL_TCP) {
    return false;
  }
  *headers = (struct headers){
      .seq = load_be32(tcp + TCP_SEQUENCE),
      .ack = load_be32(tcp + TCP_ACKNOWLEDGEMENT),
      .payload = frame->length - IP_HEADER - (uint32_t)(tcp[TCP_OFFSET] >> 4) * 4,
      .source_port = load_be16(tcp + TCP_SOURCE),
      .target_port = load_be16(tcp + TCP_DEST),
      .window = load_be16(tcp + TCP_WINDOW_FIELD),
      .flags = tcp[TCP_FLAG_BYTE],
  };
  return true;
}

bool watch_is_tail(const struct sim_frame *frame)
{
  struct headers headers;
  return read_headers(frame, &headers) && (headers.flags & FLAG_PSH);
}

/* Returns the sender's end; NULL: not a connection of the scenario, or closed. */
static struct sim_end *sender_of(struct sim *sim, const struct sim_frame *frame,
                                 const struct headers *headers)
{
  if (headers->target_port == SIM_PORT) {
    return sim->hosts[frame->source].by_port[headers->source_port];
  }
  struct sim_end *client = sim->hosts[frame->target].by_port[headers->target_port];
  return client ? client->peer : NULL;
}

/* Returns the shift in a SYN; 255: none. */
static uint8_t offered_scale(const uint8_t *tcp)
{
  const uint8_t *end = tcp + (tcp[TCP_OFFSET] >> 4) * 4;
  for (const uint8_t *option = tcp + TCP_HEADER; option < end && *option != OPTION_END;) {
    if (*option == OPTION_WINDOW_SCALE) {
      return option[2];
    }
    option += *option == OPTION_NOP ? 1 : option[1];
  }
  return 255;
}

static uint8_t shift_of(const struct sim_end *end)
{
  return end->scaled && end->peer->scaled ? end->scale : 0;
}

static uint32_t edge_in(const struct sim_end *end, const struct headers *headers)
{
  uint8_t shift = headers->flags & FLAG_SYN ? 0 : shift_of(end);
  return headers->ack + ((uint32_t)headers->window << shift);
}

static void check_payload(struct sim *sim, const struct sim_end *end, const struct headers *headers)
{
  uint32_t right = headers->seq + headers->payload;
  bool probe = headers->payload == 1 && headers->seq == end->edge_received;
  if (!end->window_known || (seq_gt(right, end->edge_received) && !probe)) {
    sim_violation(sim, "connection %llu: a segment ends %u bytes beyond the peer's window",
                  (unsigned long long)end->flow->id, right - end->edge_received);
  }
}

static void check_window(struct sim *sim, struct sim_end *end, const struct headers *headers)
{
  uint32_t edge = edge_in(end, headers);
  uint32_t unit = 1u << shift_of(end);
  if (headers->window == 0) {
    sim->counts.window_closed++;
  }
  /* A decrease of less than a unit is rounding. A host without memory advertises a zero window
   * but still accepts data on its way. */
  if (end->shown && headers->window && seq_le(edge + unit, end->edge_shown)) {
    sim_violation(sim, "connection %llu: the right edge of the window moves back by %u bytes",
                  (unsigned long long)end->flow->id, end->edge_shown - edge);
  }
  end->edge_shown = end->shown ? seq_max(end->edge_shown, edge) : edge;
  end->shown = true;
}

void watch_sent(struct sim *sim, const struct sim_frame *frame)
{
  struct headers headers;
  struct sim_host *host = &sim->hosts[frame->source];
  if (frame->length > host->config.mtu) {
    sim_violation(sim, "host %u sends a packet of %u bytes, above its MTU of %u", host->index,
                  frame->length, host->config.mtu);
  }
  struct sim_end *end = read_headers(frame, &headers) ? sender_of(sim, frame, &headers) : NULL;
  if (!end || (headers.flags & FLAG_RST)) {
    return;
  }
  if (headers.flags & FLAG_SYN) {
    uint8_t scale = offered_scale(frame->data + IP_HEADER);
    end->scaled = scale != 255;
    end->scale = end->scaled ? scale : 0;
    end->shown = false;
  }
  if (headers.flags & FLAG_ACK) {
    check_window(sim, end, &headers);
  }
  if (headers.payload) {
    check_payload(sim, end, &headers);
  }
}

void watch_arrived(struct sim *sim, const struct sim_frame *frame)
{
  struct headers headers;
  if (frame->corrupted || !read_headers(frame, &headers) || !(headers.flags & FLAG_ACK)) {
    return;
  }
  struct sim_end *end = sender_of(sim, frame, &headers);
  if (!end) {
    return;
  }
  struct sim_end *told = end->peer;
  uint32_t edge = edge_in(end, &headers);
  told->edge_received = told->window_known ? seq_max(told->edge_received, edge) : edge;
  told->window_known = true;
}
