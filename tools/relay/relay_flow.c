/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sent and delivered bytes of each flow. A frame with payload that was already delivered is a
 * needless retransmission. The relay knows this exactly, because it knows its own losses.
 */
#include "tools/relay/relay.h"

#include <arpa/inet.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

/* The payload of a TCP frame: [begin, end) in sequence numbers. */
struct payload {
  uint32_t begin, end;
  bool syn;
  struct relay_flow_key key;
};

static bool before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

/* Returns false if the headers are incomplete. A SYN uses one sequence number. */
static bool read_payload(const uint8_t *frame, size_t length, struct payload *payload)
{
  const struct iphdr *ip = (const struct iphdr *)(frame + ETHER_HDR_LEN);
  size_t headers = relay_frame_tcp_headers(frame, length);
  size_t whole = ETHER_HDR_LEN + ntohs(ip->tot_len); /* without Ethernet's padding */

  if (!headers || whole < headers || whole > length) {
    return false;
  }
  const struct tcphdr *tcp = (const struct tcphdr *)((const uint8_t *)ip + ip->ihl * 4u);

  payload->key = (struct relay_flow_key){ip->saddr, ip->daddr, tcp->source, tcp->dest};
  payload->syn = tcp->syn;
  payload->begin = ntohl(tcp->seq) + tcp->syn;
  payload->end = payload->begin + (uint32_t)(whole - headers);
  return true;
}

static void begin_flow(struct relay_flow *flow, const struct payload *payload)
{
  flow->key = payload->key;
  flow->sent = flow->delivered = payload->begin;
  flow->beyond_used = 0;
}

/* Finds the flow of a segment. A SYN or an unknown pair of ports begins a new flow, which
 * replaces the oldest. */
static struct relay_flow *find_flow(struct relay_path *path, const struct payload *payload)
{
  for (uint32_t i = 0; i < path->flows_used; i++) {
    struct relay_flow *flow = &path->flows[i];

    if (memcmp(&flow->key, &payload->key, sizeof flow->key)) {
      continue;
    }
    if (payload->syn && payload->begin != flow->first) {
      flow->first = payload->begin;
      begin_flow(flow, payload);
    }
    return flow;
  }
  struct relay_flow *flow = &path->flows[path->flows_next++ % RELAY_FLOWS];

  path->flows_used += path->flows_used < RELAY_FLOWS;
  flow->first = payload->begin;
  begin_flow(flow, payload);
  return flow;
}

void relay_flow_sent(struct relay_path *path, const uint8_t *frame, size_t length)
{
  struct payload payload;

  if (!read_payload(frame, length, &payload)) {
    return;
  }
  struct relay_flow *flow = find_flow(path, &payload);

  if (before(payload.begin, payload.end) && before(payload.begin, flow->sent)) {
    path->counts.retransmitted++;
  }
  if (before(flow->sent, payload.end)) {
    flow->sent = payload.end;
  }
}

/* Adds [begin, end) to the delivered bytes. Returns the number of new bytes. */
static uint32_t deliver(struct relay_flow *flow, uint32_t begin, uint32_t end)
{
  struct relay_range *beyond = flow->beyond;
  uint32_t length = end - begin, known = 0, first, last;

  if (before(begin, flow->delivered)) {
    known = before(end, flow->delivered) ? length : flow->delivered - begin;
    begin += known;
  }
  if (known == length) {
    return 0;
  }
  /* Merges [begin, end) with the ranges that it touches. */
  for (first = 0; first < flow->beyond_used && before(beyond[first].end, begin);) {
    first++;
  }
  uint32_t low = begin, high = end;
  for (last = first; last < flow->beyond_used && !before(end, beyond[last].begin); last++) {
    uint32_t from = before(beyond[last].begin, begin) ? begin : beyond[last].begin;
    uint32_t to = before(end, beyond[last].end) ? end : beyond[last].end;

    known += to - from;
    low = before(beyond[last].begin, low) ? beyond[last].begin : low;
    high = before(high, beyond[last].end) ? beyond[last].end : high;
  }
  if (!before(flow->delivered, low)) { /* no hole below, so these are the first ranges */
    flow->delivered = high;
    memmove(beyond, beyond + last, (flow->beyond_used - last) * sizeof *beyond);
    flow->beyond_used -= last;
    return length - known;
  }
  if (last == first && flow->beyond_used == RELAY_RANGES) {
    return length - known; /* not recorded: a repetition will count as new */
  }
  memmove(beyond + first + 1, beyond + last, (flow->beyond_used - last) * sizeof *beyond);
  flow->beyond_used += first + 1 - last;
  beyond[first] = (struct relay_range){low, high};
  return length - known;
}

void relay_flow_delivered(struct relay_path *path, const uint8_t *frame, size_t length)
{
  struct payload payload;

  if (!read_payload(frame, length, &payload) || payload.begin == payload.end) {
    return;
  }
  if (deliver(find_flow(path, &payload), payload.begin, payload.end) == 0) {
    path->counts.needless++;
  }
}
