/* SPDX-License-Identifier: Apache-2.0 */
/* A sending flow: it pulls chunks while its window is open. */
#include "plugin/link/crc32c.h"
#include "plugin/link/link.h"

enum {
  PUSHES_PER_CHUNK = 3, /* header, payload, trailer */
  /* References of the stack that chunks leave free, so that new connections can shake hands. */
  SPARE_REFERENCES = 64,
  /* The unacknowledged bytes and chunks of a flow up to which acknowledgements may be shared. */
  SHARED_BYTES = 4 * FLOW_COPY_MOST,
  SHARED_CHUNKS = 16,
};

/* Whether a claim word belongs to the message and has chunks left. */
static bool claims_one(uint64_t message, uint64_t claim)
{
  return claim >> 32 == (message & 0xffffffff) && (claim & 0xffffffff) > 0;
}

static bool has_chunks(const struct net_request *request, uint64_t message)
{
  return claims_one(message, atomic_load_explicit(&request->claim, memory_order_acquire));
}

/*
 * Takes the next chunk of a message; false: none is left. Instances race for it by
 * compare-and-swap. Only the claim word is safe to read before that: the slot may belong to a newer
 * message already, or be half written. The message number in the word keeps a late instance from
 * taking a chunk of a newer message. A successful claim keeps the other fields valid until the
 * chunk is acknowledged.
 */
static bool claim_chunk(struct net_request *request, uint64_t message, uint64_t *index)
{
  uint64_t claim = atomic_load_explicit(&request->claim, memory_order_acquire);
  do {
    if (!claims_one(message, claim)) {
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&request->claim, &claim, claim - 1,
                                                  memory_order_acq_rel, memory_order_acquire));
  *index = link_chunks(request->link, request->size) - (claim & 0xffffffff);
  return true;
}

/* Takes the next chunk of the link. NULL: no chunk is left, or another flow should take it. */
static struct net_request *next_chunk(struct link_flow *flow, uint64_t *index)
{
  struct link_instance *part = flow->part;
  struct net_link *link = flow->link;
  uint64_t posted = atomic_load_explicit(&link->posted, memory_order_acquire);
  /* Older messages have no request any more. They may be many if this part is new, or had no flow
   * for days. */
  if (posted > LINK_REQUESTS && part->cursor < posted - LINK_REQUESTS) {
    part->cursor = posted - LINK_REQUESTS;
  }
  while (part->cursor < posted) {
    struct net_request *request = &link->requests[part->cursor % LINK_REQUESTS];
    if (has_chunks(request, part->cursor)) {
      if (!flow_takes(flow, link->chunk_size)) {
        return NULL;
      }
      if (claim_chunk(request, part->cursor, index)) {
        return request;
      }
    }
    part->cursor++;
  }
  return NULL;
}

/* Bytes of a chunk in the stream, header and trailer included. */
static uint32_t size_in_stream(const struct link_flow *flow, const struct chunk *chunk)
{
  uint32_t trailer = chunk->flags & CHUNK_TRAILER ? CHUNK_TRAILER_SIZE : 0;
  return flow_header_size(flow) + chunk->length + trailer;
}

static void write_header(const struct link_flow *flow, struct chunk_out *out)
{
  chunk_write(&out->chunk, out->header);
  if (flow->checked) {
    chunk_header_seal(out->header);
  }
}

/* Pushes the unacknowledged part of a chunk. */
static bool push_rest(struct link_flow *flow, const struct chunk_out *out)
{
  const struct chunk *chunk = &out->chunk;
  bool checked = chunk->flags & CHUNK_TRAILER;
  uint32_t header = flow_header_size(flow);
  struct {
    const uint8_t *data;
    uint32_t length;
  } parts[PUSHES_PER_CHUNK] = {{out->header, header},
                               {out->payload, chunk->length},
                               {out->trailer, checked ? CHUNK_TRAILER_SIZE : 0}};
  uint32_t done = size_in_stream(flow, chunk) - out->left;
  bool pushed = true;
  for (int i = 0; i < PUSHES_PER_CHUNK && pushed; i++) {
    uint32_t skip = done < parts[i].length ? done : parts[i].length;
    pushed = harp_flow_push(flow->tcp, parts[i].data + skip, parts[i].length - skip, false) == 0;
    done -= skip;
  }
  return pushed;
}

/* Whether this is the message's last chunk. Nobody else counts then, so it needs no locked
 * instruction. */
static bool is_last_chunk(struct net_request *request)
{
  return atomic_load_explicit(&request->left, memory_order_acquire) == 1 ||
         atomic_fetch_sub_explicit(&request->left, 1, memory_order_acq_rel) == 1;
}

/* The chunk no longer needs the request. */
static void chunk_done(struct link_flow *flow, struct net_request *request)
{
  if (!is_last_chunk(request)) {
    return;
  }
  harp_instance_count(flow->instance, HARP_COUNTER_messages_out, 1);
  harp_instance_count(flow->instance, HARP_COUNTER_message_bytes_out, request->size);
  flow_count_time(flow, request);
  flow_trace(flow, HARP_TRACE_send_done, (uint32_t)request->link->id, (uint32_t)request->size);
  atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
}

/* Sets a chunk's payload: a copy of a short message, or the user's memory. The send of a copied
 * message is done at once. */
static void set_payload(struct link_flow *flow, struct chunk_out *out, struct net_request *request)
{
  const uint8_t *data = request->data + out->chunk.offset;
  const uint8_t *copy = NULL;
  out->copied = 0;
  if (request->size == out->chunk.length) {
    copy = flow_copy(flow, data, out->chunk.length, &out->copied);
  }
  out->payload = copy ? copy : data;
  out->request = copy ? NULL : request;
  if (copy) {
    chunk_done(flow, request);
  }
}

/* Whether the acknowledgement of a copied chunk of `bytes` may come with a later one. Room for more
 * copies and chunks is left, so that the flow never waits for it. */
static bool copy_may_share_ack(const struct link_flow *flow, uint32_t bytes)
{
  uint64_t held = atomic_load_explicit(&flow->held, memory_order_relaxed);
  return held + bytes <= SHARED_BYTES && flow->chunk_head - flow->chunk_tail <= SHARED_CHUNKS &&
         harp_flow_try_share_ack(flow->tcp, bytes);
}

/* Which acknowledgements of a new chunk may come with later ones: a flag of the chunk's header. */
static uint8_t ack_flags(const struct link_flow *flow, const struct chunk_out *out)
{
  if (!out->request) {
    return copy_may_share_ack(flow, out->left) ? CHUNK_SHARES_ACK : 0;
  }
  return harp_flow_try_share_ack(flow->tcp, out->left - 1) ? CHUNK_ACK_LAST : 0;
}

/* Puts a chunk into the stream: its header, and a reference to the payload. Returns its size in
 * bytes. */
static uint32_t push_chunk(struct link_flow *flow, struct net_request *request, uint64_t index)
{
  struct chunk_out *out = &flow->chunks[flow->chunk_head++ % FLOW_CHUNKS];
  uint32_t most = request->link->chunk_size;
  uint64_t offset = index * most;
  size_t rest = request->size - offset;
  out->chunk = (struct chunk){
      .message = request->message,
      .offset = offset,
      .length = (uint32_t)(rest < most ? rest : most),
      .type = CHUNK_DATA,
      .flags = rest <= most ? CHUNK_LAST : 0,
  };
  set_payload(flow, out, request);
  bool checked = flow->transport->checksum;
  if (checked) {
    out->chunk.flags |= CHUNK_TRAILER;
    chunk_trailer_write(crc32c(0, out->payload, out->chunk.length), out->trailer);
  }
  out->left = size_in_stream(flow, &out->chunk);
  out->chunk.flags |= ack_flags(flow, out);
  write_header(flow, out);
  flow_holds_more(flow, out->left);
  push_rest(flow, out); /* cannot fail: flow_pull has checked that there is room */
  harp_instance_count(flow->instance, HARP_COUNTER_chunks_out, 1);
  flow_trace(flow, HARP_TRACE_chunk_out, out->chunk.length, (uint32_t)offset);
  return out->left;
}

void flow_pull(void *user, struct harp_tcp *tcp, uint32_t room)
{
  struct link_flow *flow = user;
  if (!flow->link || flow->state != FLOW_OPEN) {
    return;
  }
  uint32_t pulled = 0;
  while (pulled < room && flow->chunk_head - flow->chunk_tail < FLOW_CHUNKS &&
         harp_flow_room(tcp) >= PUSHES_PER_CHUNK + SPARE_REFERENCES) {
    uint64_t index;
    struct net_request *request = next_chunk(flow, &index);
    if (!request) {
      return;
    }
    pulled += push_chunk(flow, request, index);
  }
}

/* A new connection has a small cwnd, which waits for each acknowledgement. The header stays as it
 * is if the peer may have a part of it. */
static void share_no_acks(const struct link_flow *flow, struct chunk_out *out)
{
  if (out->left == size_in_stream(flow, &out->chunk)) {
    out->chunk.flags &= (uint8_t)~(CHUNK_SHARES_ACK | CHUNK_ACK_LAST);
    write_header(flow, out);
  }
}

bool flow_push_again(struct link_flow *flow)
{
  bool pushed = true;
  for (uint32_t i = flow->chunk_tail; i != flow->chunk_head && pushed; i++) {
    struct chunk_out *out = &flow->chunks[i % FLOW_CHUNKS];
    share_no_acks(flow, out);
    pushed = push_rest(flow, out);
  }
  return pushed;
}

void flow_acked(void *user, struct harp_tcp *tcp, uint32_t bytes)
{
  struct link_flow *flow = user;
  uint32_t handshake = bytes < flow->handshake_left ? bytes : flow->handshake_left;
  flow->handshake_left -= handshake;
  flow_count_acked(flow, bytes - handshake);
}

void flow_count_acked(struct link_flow *flow, uint64_t bytes)
{
  flow->acked += bytes;
  while (bytes > 0 && flow->chunk_tail != flow->chunk_head) {
    struct chunk_out *out = &flow->chunks[flow->chunk_tail % FLOW_CHUNKS];
    uint32_t part = bytes < out->left ? (uint32_t)bytes : out->left;
    out->left -= part;
    bytes -= part;
    flow_holds_less(flow, part, bytes == 0 && out->chunk.flags & CHUNK_SHARES_ACK);
    if (out->left == 0) {
      flow->chunk_tail++;
      flow_copy_acked(flow, out->copied);
      if (out->request) {
        chunk_done(flow, out->request);
      }
    }
  }
}
