/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receiving flow. It copies payload to its place in the posted buffer, unless the port has
 * already placed it there.
 *
 * Each complete chunk subtracts its length from a receive's word `left`. The last chunk tells the
 * message's size, which is added once. Zero means that the message is complete.
 *
 * A peer with the token may still send contradictory chunks. A chunk's length is therefore claimed
 * (`claim`) before its first byte is written. The message cannot be complete while claimed bytes
 * are missing. The claims cannot exceed the size once it is known. A flow therefore never writes to
 * the buffer of a finished request. `edges` shows whether the chunks of a complete message cover it
 * without overlap.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/link/crc32c.h"
#include "plugin/link/link.h"

enum {
  EXPECT_LEAST = 512, /* bytes; a hint for smaller segments costs more than it saves */
  BULK_LEAST = 32768, /* bytes of a chunk; a copy of smaller ones costs less than a receive call */
  /* Polls that leave frames in the port when the receive of a chunk of BULK_LEAST is missing. The
   * caller posts it within a few polls if it only lags behind. */
  POSTPONED_POLLS = 8,
};

/* A receive's `claim`. Low 48 bits: the bytes claimed so far or, once the last chunk has told the
 * size (CLAIM_SIZED), the bytes that may still be claimed. Above them: part of the message number,
 * because the slot may be posted again at any time. */
#define CLAIM_SIZED (1ull << 63)
#define CLAIM_TAG (0x7fffull << 48)
#define CLAIM_BYTES ((1ull << 48) - 1)

uint64_t receive_unclaimed(uint64_t message) { return message / LINK_REQUESTS << 48 & CLAIM_TAG; }

/* Claims a chunk's bytes in the word; false: the chunk contradicts earlier ones. */
static bool add_claim(const struct chunk *chunk, uint64_t *word)
{
  uint64_t bytes = *word & CLAIM_BYTES, length = chunk->length, end = chunk->offset + length;
  bool last = chunk->flags & CHUNK_LAST, sized = *word & CLAIM_SIZED;
  bool good = chunk->offset <= CLAIM_BYTES && end <= CLAIM_BYTES &&
              (length > 0 || (last && end == 0)) &&
              (*word & CLAIM_TAG) == receive_unclaimed(chunk->message);
  if (sized) {
    good &= !last && length <= bytes;
    bytes -= length;
  } else if (last) {
    good &= bytes + length <= end;
    bytes = end - bytes - length;
  } else {
    good &= bytes + length <= CLAIM_BYTES;
    bytes += length;
  }
  *word = (sized || last ? CLAIM_SIZED : 0) | receive_unclaimed(chunk->message) | bytes;
  return good;
}

/* true: the request stays posted until the chunk is complete, and the fields that irecv published
 * before the claim word are valid. */
static bool claim(struct net_request *request, const struct chunk *chunk)
{
  uint64_t word = atomic_load_explicit(&request->claim, memory_order_relaxed), next;
  do {
    next = word;
    if (!add_claim(chunk, &next)) {
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&request->claim, &word, next,
                                                  memory_order_acquire, memory_order_relaxed));
  return true;
}

/*
 * Hashes an offset within a message (splitmix64). A complete chunk adds the hash of its end and
 * subtracts the hash of its beginning; the last chunk adds the hash of 0 instead. The sum is zero
 * if at each offset as many chunks end as begin, which means that they cover the message without
 * overlap. A peer that forges a zero sum gains nothing: it could as well send wrong bytes.
 */
static uint64_t edge(uint64_t x)
{
  x = (x + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/* Collects up to size bytes in flow->rx_header. Returns the bytes taken from data. */
static size_t collect(struct link_flow *flow, const uint8_t *data, size_t length, uint32_t size)
{
  size_t part = size - flow->rx_header_size;
  part = part < length ? part : length;
  if (part) {
    memcpy(flow->rx_header + flow->rx_header_size, data, part);
    flow->rx_header_size += (uint32_t)part;
  }
  return part;
}

/* Size of the hello or welcome that the peer is sending, as far as its first bytes tell. */
static uint32_t hello_size(const struct link_flow *flow)
{
  struct welcome welcome;
  if (flow->listener) {
    return HELLO_SIZE;
  }
  bool more = flow->rx_header_size >= WELCOME_SIZE && welcome_read(&welcome, flow->rx_header) &&
              welcome_has_nics(&welcome);
  return more ? HANDSHAKE_SIZE : WELCOME_SIZE;
}

/* Collects the peer's hello or welcome. *gone: the flow was freed, and its connection may now
 * belong to another flow. */
static size_t hello_input(struct link_flow *flow, const uint8_t *data, size_t length, bool *gone)
{
  size_t taken = collect(flow, data, length, hello_size(flow));
  taken += collect(flow, data + taken, length - taken, hello_size(flow)); /* the list of NICs */
  *gone = false;
  if (flow->rx_header_size == hello_size(flow)) {
    flow->rx_header_size = 0;
    *gone = !(flow->listener ? listener_input(flow) : connector_input(flow));
  }
  return taken;
}

struct destination {
  uint8_t *data;   /* in the posted buffer */
  uint32_t length; /* bytes; 0: no payload is expected */
};

/* Where the next payload belongs: the rest of the current chunk. */
static struct destination payload_destination(const struct link_flow *flow)
{
  if (!flow->request || flow->chunk_left == 0) {
    return (struct destination){0};
  }
  const struct chunk *chunk = &flow->chunk;
  return (struct destination){
      .data = flow->request->data + chunk->offset + chunk->length - flow->chunk_left,
      .length = flow->chunk_left,
  };
}

/* Where payload may be written before it is checked: payload_destination, or nothing if the GPU
 * polls the buffer (early_read.h). */
static struct destination early_destination(const struct link_flow *flow)
{
  bool never = flow->request && flow->request->read_early;
  return never ? (struct destination){0} : payload_destination(flow);
}

/* Guesses where the payload of the next chunk belongs, if only that chunk's header comes in
 * between. The next chunk continues this message, or begins the next one. Its guessed length is
 * that of this message's first chunk. A guess about another message needs two messages with equal
 * first chunks (steady). Chunks arrive in order on a link with one flow only, so other links get no
 * guess. */
static struct destination next_destination(const struct link_flow *flow)
{
  const struct net_link *link = flow->link;
  const struct chunk *chunk = &flow->chunk;
  bool last = chunk->flags & CHUNK_LAST;
  uint64_t message = chunk->message + last, offset = last ? 0 : chunk->offset + chunk->length;
  bool between = flow->request ? flow->chunk_left == 0 : flow->rx_header_size > 0;
  if (!flow->first_chunk || (last && !flow->steady) || between || link->flow_count != 1 ||
      message >= atomic_load_explicit(&link->posted, memory_order_acquire)) {
    return (struct destination){0};
  }
  const struct net_request *request = &link->requests[message % LINK_REQUESTS];
  bool waits = request->message == message && offset < request->size &&
               atomic_load_explicit(&request->state, memory_order_relaxed) == REQUEST_POSTED;
  if (!waits || request->read_early || (flow->request && flow->request->read_early)) {
    return (struct destination){0};
  }
  size_t left = request->size - offset;
  return (struct destination){
      .data = request->data + offset,
      .length = left < flow->first_chunk ? (uint32_t)left : flow->first_chunk,
  };
}

/* Bytes between the payload of the current chunk, if there is one, and that of the next chunk. */
static size_t bytes_between(const struct link_flow *flow)
{
  bool trailer = flow->request && flow->chunk.flags & CHUNK_TRAILER;
  return flow_header_size(flow) + (trailer ? CHUNK_TRAILER_SIZE : 0);
}

/* Tells the port where the next payload belongs. The hint has no place if that is not known, as
 * before a receive is posted. The port then takes one frame, and the rest of a burst waits for a
 * better hint instead of a copy. After a loss no better hint comes for a round trip, so the port
 * takes whole bursts without a hint. */
static bool expect(void *user, struct harp_rx_hint *hint)
{
  struct link_flow *flow = user;
  struct destination to = {0}, next = {0};
  flow->offered = NULL; /* may be left over from a segment that the stack rejected */
  bool empty = harp_flow_rcv_queue_empty(flow->tcp) && !flow->inherited;
  if (empty) {
    to = early_destination(flow);
    next = next_destination(flow);
  }
  bool known = to.length + next.length > 0, lost = !empty && !flow->stalled;
  if (link_ended(flow->link) || flow->stride < EXPECT_LEAST ||
      (!known && (lost || flow->first_chunk < BULK_LEAST))) {
    return false;
  }
  hint->header_length = harp_flow_header_length(flow->tcp);
  hint->payload = to.data;
  hint->length = to.length;
  hint->stride = flow->stride;
  hint->gap = bytes_between(flow);
  hint->next = next.data;
  hint->next_length = next.length;
  return true;
}

void flow_count_wait(struct link_flow *flow)
{
  if (flow->stalled) {
    uint64_t now = harp_instance_now(flow->instance);
    /* A flow that moved began to wait by the clock of another instance. */
    uint64_t time = now > flow->stalled_since ? now - flow->stalled_since : 0;
    flow->stalled_since = now;
    flow->stalled_time += time;
    harp_instance_count(flow->instance, HARP_COUNTER_receive_wait_ns, time);
  }
}

static void end_stall(struct link_flow *flow)
{
  flow_count_wait(flow);
  if (flow->stalled) {
    harp_instance_postpone_receive(flow->instance, 0);
  }
  flow->stalled = false;
}

/* The receive that a chunk belongs to. NULL: it is not posted yet, or the link has failed. */
static struct net_request *find_request(struct link_flow *flow)
{
  struct net_link *link = flow->link;
  const struct chunk *chunk = &flow->chunk;
  if (chunk->message >= atomic_load(&link->posted)) {
    if (!flow->stalled) {
      flow->stalled = true;
      flow->stalled_since = harp_instance_now(flow->instance);
      if (chunk->length >= BULK_LEAST) {
        harp_instance_postpone_receive(flow->instance, POSTPONED_POLLS);
      }
    }
    atomic_store(&link->stalled, true);
    /* Set stalled, then check again. irecv does the reverse: it publishes, then checks stalled. */
    if (chunk->message >= atomic_load(&link->posted)) {
      harp_instance_count(flow->instance, HARP_COUNTER_receive_stalls, 1);
      flow_trace(flow, HARP_TRACE_receive_stall, (uint32_t)link->id, 0);
      return NULL;
    }
    end_stall(flow);
  }
  struct net_request *request = &link->requests[chunk->message % LINK_REQUESTS];
  if (!claim(request, chunk) || request->message != chunk->message) {
    link_fail(link, -EPROTO,
              "flow %u: a chunk of message %llu, bytes %llu to %llu, contradicts "
              "the others: do both hosts run the same HARP?",
              flow->number, (unsigned long long)chunk->message, (unsigned long long)chunk->offset,
              (unsigned long long)(chunk->offset + chunk->length));
    return NULL;
  }
  return request;
}

static bool chunk_fits(struct link_flow *flow, const struct net_request *request)
{
  const struct chunk *chunk = &flow->chunk;
  if (chunk->length > request->size || chunk->offset > request->size - chunk->length) {
    link_fail(flow->link, -EMSGSIZE,
              "message %llu is larger than the receive that was posted for it (%zu bytes): the "
              "ranks disagree on sizes",
              (unsigned long long)chunk->message, request->size);
    return false;
  }
  return true;
}

static void message_complete(struct link_flow *flow, struct net_request *request)
{
  if (atomic_load_explicit(&request->edges, memory_order_relaxed) != 0) {
    link_fail(flow->link, -EPROTO,
              "the chunks of message %llu overlap: do both hosts run the same "
              "HARP?",
              (unsigned long long)request->message);
    return;
  }
  harp_instance_count(flow->instance, HARP_COUNTER_messages_in, 1);
  harp_instance_count(flow->instance, HARP_COUNTER_message_bytes_in, request->received);
  flow_count_time(flow, request);
  flow_trace(flow, HARP_TRACE_receive_done, (uint32_t)request->link->id,
             (uint32_t)request->received);
  atomic_store_explicit(&request->state, REQUEST_DONE, memory_order_release);
}

/* Adds a complete chunk to the request. Returns the bytes that are left then. A chunk that is the
 * whole message changes neither word, and needs no locked instruction. */
static int64_t count_chunk(struct net_request *request, uint64_t edges, int64_t change)
{
  if (edges == 0 && change == 0) {
    return atomic_load_explicit(&request->left, memory_order_acquire);
  }
  atomic_fetch_add_explicit(&request->edges, edges, memory_order_relaxed);
  return atomic_fetch_add_explicit(&request->left, change, memory_order_acq_rel) + change;
}

static void chunk_complete(struct link_flow *flow)
{
  struct net_request *request = flow->request;
  const struct chunk *chunk = &flow->chunk;
  bool last = chunk->flags & CHUNK_LAST;
  size_t total = chunk->offset + chunk->length;
  int64_t change = -(int64_t)chunk->length;
  uint64_t edges = edge(last ? 0 : total) - edge(chunk->offset);
  if (last) {
    request->received = total;
    change += (int64_t)total;
  }
  flow->request = NULL;
  flow->rx_header_size = 0;
  flow->shares_ack &= (chunk->flags & CHUNK_SHARES_ACK) != 0;
  harp_instance_count(flow->instance, HARP_COUNTER_chunks_in, 1);
  flow_trace(flow, HARP_TRACE_chunk_in, chunk->length, (uint32_t)chunk->offset);
  if (count_chunk(request, edges, change) == 0 && (last || chunk->length > 0)) {
    message_complete(flow, request);
  }
}

/* Whether a checked flow's header has a valid CRC and announces a trailer. */
static bool header_intact(struct link_flow *flow)
{
  if (!flow->checked ||
      (chunk_header_intact(flow->rx_header) && flow->chunk.flags & CHUNK_TRAILER)) {
    return true;
  }
  link_fail(flow->link, -EBADMSG,
            "flow %u: the header of a chunk changed between the sender's "
            "memory and this host's: suspect memory, NIC or cable",
            flow->number);
  return false;
}

/* Whether acknowledgements of the current chunk may come with later ones, except for its end. */
static bool may_share_acks(const struct link_flow *flow)
{
  return flow->chunk.flags & (CHUNK_SHARES_ACK | CHUNK_ACK_LAST);
}

/* Begins the chunk with the complete header in flow->rx_header. false: no receive is posted yet, or
 * the link has failed. */
static bool begin_chunk(struct link_flow *flow)
{
  chunk_read(&flow->chunk, flow->rx_header);
  if (!header_intact(flow)) {
    return false;
  }
  if (flow->chunk.type != CHUNK_DATA || flow->link->sends) {
    link_fail(flow->link, -EPROTO,
              "flow %u: a chunk of type %u, flags %u, which this release "
              "does not expect: do both hosts run the same HARP?",
              flow->number, flow->chunk.type, flow->chunk.flags);
    return false;
  }
  struct net_request *request = find_request(flow);
  if (!request || !chunk_fits(flow, request)) {
    return false;
  }
  if (flow->chunk.offset == 0) {
    uint32_t length = request->read_early ? 0 : flow->chunk.length;
    flow->steady = length == flow->first_chunk;
    flow->first_chunk = length;
  }
  flow->request = request;
  flow->chunk_left = flow->chunk.length;
  flow->shares_ack &= may_share_acks(flow);
  flow->crc = 0;
  flow->rx_header_size = 0;
  return true;
}

static size_t payload_in(struct link_flow *flow, const uint8_t *data, size_t length)
{
  struct destination to = payload_destination(flow);
  size_t part = to.length < length ? to.length : length;
  if (to.data == data) {
    harp_instance_count(flow->instance, HARP_COUNTER_rx_placed, data != flow->offered);
  } else if (flow->request->read_early) {
    early_read_copy(to.data, data, part);
  } else {
    memmove(to.data, data, part); /* misplaced payload may overlap: it is in the same buffer */
  }
  if (flow->chunk.flags & CHUNK_TRAILER) {
    flow->crc = crc32c(flow->crc, to.data, part);
  }
  flow->chunk_left -= (uint32_t)part;
  return part;
}

/* Checks the payload's CRC against the complete trailer in flow->rx_header. */
static bool payload_intact(struct link_flow *flow)
{
  if (chunk_trailer_read(flow->rx_header) == flow->crc) {
    return true;
  }
  link_fail(
      flow->link, -EBADMSG,
      "flow %u: bytes of message %llu changed between the sender's memory and this host's: suspect "
      "memory, NIC or cable, or a buffer that was written to while it was being sent",
      flow->number, (unsigned long long)flow->chunk.message);
  return false;
}

/* Whether a copy to the chunk's memory would overwrite bytes that are still to be read. A port may
 * have put bytes into the memory of a message that they do not belong to (next_destination), and
 * the message may have come in another order than expected. */
static bool overwrites_unread(const struct link_flow *flow, const uint8_t *data, size_t length)
{
  struct destination to = payload_destination(flow);
  size_t part = to.length < length ? to.length : length;
  return to.data > data && to.data < data + length && part < length;
}

/* Whether unread bytes lie in the buffer of the current message. The caller of test() may write
 * there once the message is complete. */
static bool unread_in_buffer(const struct link_flow *flow, const uint8_t *data, size_t length)
{
  const struct net_request *request = flow->request;
  return length > 0 && data >= request->data && data < request->data + request->size;
}

static size_t chunks_in(struct link_flow *flow, const uint8_t *data, size_t length);

/* chunks_in of a copy, because chunks_in overwrites the bytes, or lets others do so. The flow keeps
 * bytes that must wait for a receive. */
static size_t copied_in(struct link_flow *flow, const uint8_t *data, size_t length)
{
  uint8_t *copy = malloc(length);
  if (!copy) {
    return 0; /* the stack keeps the bytes; a later segment brings the flow here again */
  }
  memcpy(copy, data, length);
  size_t taken = chunks_in(flow, copy, length);
  if (taken == length) {
    free(copy);
  } else {
    flow->inherited = copy;
    flow->inherited_size = length;
    flow->inherited_taken = taken;
  }
  return length;
}

static size_t chunks_in(struct link_flow *flow, const uint8_t *data, size_t length)
{
  size_t taken = 0;
  for (;;) {
    if (flow->request && flow->chunk_left == 0) {
      if (unread_in_buffer(flow, data + taken, length - taken)) {
        return taken + copied_in(flow, data + taken, length - taken);
      }
      if (flow->chunk.flags & CHUNK_TRAILER) {
        taken += collect(flow, data + taken, length - taken, CHUNK_TRAILER_SIZE);
        if (flow->rx_header_size < CHUNK_TRAILER_SIZE || !payload_intact(flow)) {
          break;
        }
      }
      chunk_complete(flow);
    } else if (flow->request) {
      if (taken == length) {
        break;
      }
      if (overwrites_unread(flow, data + taken, length - taken)) {
        return taken + copied_in(flow, data + taken, length - taken);
      }
      taken += payload_in(flow, data + taken, length - taken);
    } else {
      taken += collect(flow, data + taken, length - taken, flow_header_size(flow));
      if (flow->rx_header_size < flow_header_size(flow)) {
        break;
      }
      if (!begin_chunk(flow)) {
        if (flow->stalled && taken > 0) {
          /* The header's last byte stays in the stack until the receive is posted. Otherwise an
           * empty message would leave no byte there, and the peer's FIN would be an error. */
          flow->rx_header_size--;
          taken--;
        }
        break;
      }
    }
  }
  return taken;
}

uint8_t *flow_rx_buffer(void *user, struct harp_tcp *tcp, uint32_t length)
{
  struct link_flow *flow = user;
  struct destination to = early_destination(flow);
  bool fits = length <= to.length && !link_ended(flow->link);
  flow->offered = fits ? to.data : NULL;
  return flow->offered;
}

/* Delivers inherited bytes. false: some are left. */
static bool deliver_inherited(struct link_flow *flow)
{
  if (!flow->inherited) {
    return true;
  }
  if (!link_ended(flow->link)) {
    flow->inherited_taken += chunks_in(flow, flow->inherited + flow->inherited_taken,
                                       flow->inherited_size - flow->inherited_taken);
  }
  if (flow->inherited_taken < flow->inherited_size) {
    return false;
  }
  flow_drop_inherited(flow);
  return true;
}

void flow_resume_inherited(struct link_flow *flow)
{
  end_stall(flow);
  if (!deliver_inherited(flow)) {
    return;
  }
  if (flow->tcp) {
    harp_flow_resume(flow->tcp);
  }
  flow_readable(flow, flow->tcp); /* the FIN may have waited for these bytes */
}

/* Takes the chunks of a segment. The acknowledgement waits if all their senders allow it. */
static size_t segment_in(struct link_flow *flow, const uint8_t *data, size_t length)
{
  flow->shares_ack = !flow->request || may_share_acks(flow);
  size_t taken = chunks_in(flow, data, length);
  bool waits = flow->shares_ack && taken == length && !flow->inherited;
  if (waits && flow->tcp) {
    harp_flow_share_ack(flow->tcp, flow->request != NULL);
  }
  return taken;
}

size_t flow_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length)
{
  struct link_flow *flow = user;
  size_t taken = 0;
  if (flow->move && !flow->move->link->sends) {
    return 0; /* the flow that gets this connection takes the bytes */
  }
  if (flow->state == FLOW_HANDSHAKE) {
    bool gone;
    taken = hello_input(flow, data, length, &gone);
    if (gone || taken == length) {
      return taken;
    }
  }
  if (!flow->link) {
    /* The link was closed here, so received data has no receiver. */
    flow_close_free(flow, FLOW_CLOSE_RESET);
    return length;
  }
  if (!deliver_inherited(flow)) {
    return taken;
  }
  flow->stride = flow->stride > length ? flow->stride : (uint32_t)length;
  if (!link_ended(flow->link)) {
    taken += segment_in(flow, data + taken, length - taken);
  }
  if (flow->tcp) {
    harp_instance_expect(flow->instance, expect, flow);
  }
  return taken;
}

void flow_resume(struct link_flow *flow)
{
  if (flow->stalled) {
    flow_resume_inherited(flow);
  }
}
