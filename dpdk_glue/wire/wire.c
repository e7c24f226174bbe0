/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "wire:PATH": two ends joined by shared memory, in one process or two.
 *
 * A ring of bytes with one writer and one reader leads from every queue of one end to every queue
 * of the other. A frame crosses as a whole. A note beside it records the device's work (checksum,
 * segmentation), so nothing is summed and nothing is segmented. The frame is copied once, into the
 * ring. The reader gets pointers into the ring and frees the bytes at its next receive.
 *
 * The end of a peer that died stays unchanged. The rings fill up and transmit returns -EAGAIN, as
 * with a device that has stopped. A new process on that end starts with empty rings.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)0)
#endif

#include "dpdk_glue/fail.h"
#include "dpdk_glue/frame_fields.h"
#include "dpdk_glue/local_ports.h"
#include "dpdk_glue/port.h"
#include "dpdk_glue/wire/wire_file.h"
#include "harp/counters.h"

enum {
  WIRE_MTU = 1500, /* default MTU in info, that of the most common link */
  RECORD_ALIGN = 16,
};

/* Precedes each frame in a ring. A record and its frame are never split. A skip
 * record fills the rest of the ring, and they go to its start, if they do not fit before its end.
 */
struct wire_record {
  uint32_t length; /* bytes of the frame, or bytes to skip, without this record */
  uint16_t segment_size;
  uint8_t checksum_good;
  uint8_t skip;
  uint64_t reserved;
};
_Static_assert(sizeof(struct wire_record) == RECORD_ALIGN, "records keep frames aligned");

/* The writer's state of a ring. */
struct wire_out {
  struct wire_ring *ring;
  uint8_t *bytes;
  uint64_t written;  /* our copy of ring->written */
  uint64_t consumed; /* last value read from ring->consumed */
  bool starving;     /* the last frame did not fit */
  bool unannounced;  /* has frames since the last flush */
};

/* The reader's state of a ring. The address sanitizer lets it read only the bytes of received
 * frames. This detects code that trusts a wrong length in a header. */
struct wire_in {
  struct wire_ring *ring;
  const uint8_t *bytes;
  uint64_t consumed; /* our copy of ring->consumed */
  uint64_t received; /* end of the frames that the last receive returned */
};

/* One queue, used by one poller. The counters run since the last count. */
struct wire_queue {
  _Alignas(64) struct wire_out out[WIRE_QUEUES]; /* by the peer's queue */
  struct wire_in in[WIRE_QUEUES];
  unsigned turn; /* the ring to read first at the next receive */
  uint64_t copied, full, broken;
};

struct wire_port {
  struct harp_port port;
  struct wire_file file;
  uint64_t mask; /* ring size - 1 */
  struct harp_local_ports local_ports;
  struct wire_queue *queues;
};

static struct wire_port *wire_of(struct harp_port *port) { return (struct wire_port *)port; }

static uint64_t record_bytes(uint64_t length)
{
  return (sizeof(struct wire_record) + length + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}

/* Returns the bytes that a frame needs in the ring now, including *skip bytes. */
static uint64_t bytes_needed(const struct wire_port *wire, const struct wire_out *out,
                             uint32_t length, uint64_t *skip)
{
  uint64_t need = record_bytes(length);
  uint64_t to_end = wire->mask + 1 - (out->written & wire->mask);
  *skip = to_end < need ? to_end : 0;
  return *skip + need;
}

static bool has_room(const struct wire_port *wire, struct wire_out *out, uint64_t need)
{
  if (out->written + need - out->consumed <= wire->mask + 1) {
    return true;
  }
  out->consumed = atomic_load_explicit(&out->ring->consumed, memory_order_acquire);
  return out->written + need - out->consumed <= wire->mask + 1;
}

/* Announces the wait, fences, and looks again. The reader frees bytes, fences, and then reads
 * `starved`. So at least one of the two sees the other's store. */
static bool wait_for_room(const struct wire_port *wire, struct wire_out *out, uint64_t need)
{
  atomic_store_explicit(&out->ring->starved, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return has_room(wire, out, need);
}

static void write_record(struct wire_out *out, uint64_t at, const struct harp_tx_frame *frame)
{
  struct wire_record record = {
      .length = frame->length,
      .segment_size = frame->segment_size,
      .checksum_good = frame->checksum_needed,
  };
  uint8_t *to = out->bytes + at;
  memcpy(to, &record, sizeof(record));
  to += sizeof(record);
  for (unsigned i = 0; i < frame->iov_count; i++) {
    memcpy(to, frame->iov[i].iov_base, frame->iov[i].iov_len);
    to += frame->iov[i].iov_len;
  }
}

static int put(struct wire_port *wire, struct wire_out *out, const struct harp_tx_frame *frame)
{
  uint64_t skip, need = bytes_needed(wire, out, frame->length, &skip);
  if (!has_room(wire, out, need) && !wait_for_room(wire, out, need)) {
    out->starving = true;
    return -EAGAIN;
  }
  out->starving = false;
  if (skip) {
    struct wire_record record = {.length = (uint32_t)(skip - sizeof(record)), .skip = 1};
    memcpy(out->bytes + (out->written & wire->mask), &record, sizeof(record));
  }
  write_record(out, (out->written + skip) & wire->mask, frame);
  out->written += need;
  out->unannounced = true;
  atomic_store_explicit(&out->ring->written, out->written, memory_order_release);
  return 0;
}

static int wire_transmit(struct harp_port *port, unsigned queue, const struct harp_tx_frame *frame)
{
  struct wire_port *wire = wire_of(port);
  struct wire_queue *own = &wire->queues[queue];
  if (frame->length > HARP_FRAME_MAX) {
    return -EMSGSIZE;
  }
  int to = harp_frame_queue(frame->iov[0].iov_base, frame->iov[0].iov_len, wire->file.queues);
  int rc = put(wire, &own->out[to < 0 ? 0 : to], frame);
  if (rc < 0) {
    own->full++;
    return rc;
  }
  /* Sends ARP to the other queues too. A full queue may miss it, because ARP requests are
   * repeated. */
  for (unsigned q = 1; to < 0 && q < wire->file.queues; q++) {
    own->full += put(wire, &own->out[q], frame) < 0;
  }
  own->copied += frame->length - frame->header_length;
  return 0;
}

static void wire_flush(struct harp_port *port, unsigned queue)
{
  struct wire_port *wire = wire_of(port);
  struct wire_queue *own = &wire->queues[queue];
  bool fenced = false;
  for (unsigned q = 0; q < wire->file.queues; q++) {
    if (!own->out[q].unannounced) {
      continue;
    }
    own->out[q].unannounced = false;
    if (!fenced) {
      atomic_thread_fence(memory_order_seq_cst);
    }
    fenced = true;
    harp_wire_wake(&wire->file, !wire->file.end, q);
  }
}

/* Poisons the ring's bytes between two positions, at most one ring's size apart. */
static void forbid(const struct wire_port *wire, const struct wire_in *in, uint64_t from,
                   uint64_t to)
{
  for (uint64_t end; from < to; from = end) {
    end = (from | wire->mask) + 1;
    end = end < to ? end : to;
    ASAN_POISON_MEMORY_REGION(in->bytes + (from & wire->mask), end - from);
  }
}

/* Returns the last receive's bytes to the writer. */
static void release(struct wire_port *wire, struct wire_in *in, unsigned from)
{
  if (in->consumed == in->received) {
    return;
  }
  forbid(wire, in, in->consumed, in->received);
  in->consumed = in->received;
  atomic_store_explicit(&in->ring->consumed, in->consumed, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  if (!atomic_load_explicit(&in->ring->starved, memory_order_relaxed)) {
    return;
  }
  atomic_store_explicit(&in->ring->starved, 0, memory_order_relaxed);
  harp_wire_wake(&wire->file, !wire->file.end, from);
}

/* The peer is another process, so an impossible length is rejected. */
static bool plausible(const struct wire_port *wire, const struct wire_record *record, uint64_t at,
                      uint64_t available)
{
  uint64_t whole = record_bytes(record->length);
  uint64_t to_end = wire->mask + 1 - (at & wire->mask);
  return whole <= available && whole <= to_end &&
         (record->skip ? whole == to_end : record->length <= HARP_FRAME_MAX);
}

static int take(struct wire_port *wire, struct wire_queue *own, struct wire_in *in,
                struct harp_rx_frame *frames, int max)
{
  uint64_t written = atomic_load_explicit(&in->ring->written, memory_order_acquire);
  int n = 0;
  while (n < max && in->received != written) {
    const uint8_t *at = in->bytes + (in->received & wire->mask);
    struct wire_record record;
    ASAN_UNPOISON_MEMORY_REGION(at, sizeof(record));
    memcpy(&record, at, sizeof(record));
    if (!plausible(wire, &record, in->received, written - in->received)) {
      in->received = written;
      own->broken++;
      break;
    }
    in->received += record_bytes(record.length);
    if (record.skip) {
      continue;
    }
    ASAN_UNPOISON_MEMORY_REGION(at + sizeof(record), record.length);
    frames[n++] = (struct harp_rx_frame){
        .header = at + sizeof(record),
        .header_length = record.length,
        .payload = at + sizeof(record) + record.length,
        .segment_size = record.segment_size,
        .checksum_good = record.checksum_good,
    };
  }
  return n;
}

static int wire_receive(struct harp_port *port, unsigned queue, const struct harp_rx_hint *hint,
                        struct harp_rx_frame *frames, int max)
{
  struct wire_port *wire = wire_of(port);
  struct wire_queue *own = &wire->queues[queue];
  int n = 0;
  for (unsigned i = 0; i < wire->file.queues; i++) {
    unsigned from = (own->turn + i) % wire->file.queues;
    release(wire, &own->in[from], from);
    n += take(wire, own, &own->in[from], frames + n, max - n);
  }
  own->turn = (own->turn + 1) % wire->file.queues;
  return n;
}

static int wire_descriptor(struct harp_port *port, unsigned queue)
{
  struct wire_port *wire = wire_of(port);
  return wire->file.doorbells[wire->file.end][queue];
}

/* Returns true if a frame waits, or if room appeared for a frame that did not fit. */
static bool must_stay_awake(struct wire_port *wire, struct wire_queue *own)
{
  for (unsigned q = 0; q < wire->file.queues; q++) {
    const struct wire_out *out = &own->out[q];
    if (atomic_load(&own->in[q].ring->written) != own->in[q].received) {
      return true;
    }
    if (out->starving && atomic_load(&out->ring->consumed) != out->consumed) {
      return true;
    }
  }
  return false;
}

static int wire_arm(struct harp_port *port, unsigned queue, bool asleep)
{
  struct wire_port *wire = wire_of(port);
  struct wire_sleeper *sleeper = &wire->file.header->sleepers[wire->file.end][queue];
  if (!asleep) {
    atomic_store_explicit(&sleeper->asleep, 0, memory_order_relaxed);
    harp_wire_quiet(&wire->file, queue);
    return 0;
  }
  atomic_store_explicit(&sleeper->asleep, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  if (!must_stay_awake(wire, &wire->queues[queue])) {
    return 0;
  }
  atomic_store_explicit(&sleeper->asleep, 0, memory_order_relaxed);
  return 1;
}

static int wire_reserve(struct harp_port *port, unsigned queue, uint16_t wanted, uint16_t *local)
{
  struct wire_port *wire = wire_of(port);
  return harp_local_ports_take(&wire->local_ports, queue, wire->file.queues, wanted, local);
}

static void wire_release(struct harp_port *port, unsigned queue, uint16_t local)
{
  harp_local_ports_give(&wire_of(port)->local_ports, local);
}

static int wire_reclaim(struct harp_port *port, unsigned queue, uint32_t timeout_us)
{
  return 0; /* transmit copies */
}

static void wire_count(struct harp_port *port, unsigned queue, uint64_t *counters)
{
  struct wire_queue *own = &wire_of(port)->queues[queue];
  counters[HARP_COUNTER_tx_copied_bytes] += own->copied;
  counters[HARP_COUNTER_port_tx_full] += own->full;
  counters[HARP_COUNTER_port_rx_lost] += own->broken;
  own->copied = own->full = own->broken = 0;
}

static void allow_all(const struct wire_file *file)
{
  ASAN_UNPOISON_MEMORY_REGION(file->header, file->size); /* other code may map memory there later */
}

static void wire_close(struct harp_port *port)
{
  struct wire_port *wire = wire_of(port);
  if (wire->file.header) {
    allow_all(&wire->file);
    harp_wire_leave(&wire->file);
  }
  free(wire->queues);
  free(wire);
}

static void wire_forget(struct harp_port *port)
{
  struct wire_file *file = &wire_of(port)->file;
  allow_all(file);
  harp_wire_forget(file);
}

static void connect_rings(struct wire_port *wire)
{
  struct wire_file *file = &wire->file;
  for (unsigned own = 0; own < file->queues; own++) {
    for (unsigned other = 0; other < file->queues; other++) {
      struct wire_out *out = &wire->queues[own].out[other];
      out->ring = &file->header->rings[file->end][own][other];
      out->bytes = harp_wire_bytes(file, file->end, own, other);
      out->written = atomic_load(&out->ring->written);
      out->consumed = atomic_load(&out->ring->consumed);
      struct wire_in *in = &wire->queues[own].in[other];
      in->ring = &file->header->rings[!file->end][other][own];
      in->bytes = harp_wire_bytes(file, !file->end, other, own);
      in->consumed = in->received = atomic_load(&in->ring->consumed);
      forbid(wire, in, 0, wire->mask + 1);
    }
  }
}

static void describe(struct wire_port *wire, const struct harp_port_config *config)
{
  struct harp_port_info *info = &wire->port.info;
  static const uint8_t unset[6];
  const uint8_t derived[6] = {0x02, 'H', 'A', 'R', 'P', (uint8_t)wire->file.end};
  memcpy(info->mac, memcmp(config->mac, unset, 6) ? config->mac : derived, 6);
  info->mtu = config->mtu ? config->mtu : WIRE_MTU;
  info->offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_TSO | HARP_OFFLOAD_RX_CHECKSUM |
                   HARP_OFFLOAD_LRO;
  info->max_frame = HARP_FRAME_MAX;
  info->address = config->address;
  info->prefix = config->prefix;
  info->gateway = config->gateway;
  info->point_to_point = true;
  snprintf(info->summary, sizeof(info->summary), "wire %s, end %d, mtu %u, %u queues of %d MiB",
           wire->file.path, wire->file.end, info->mtu, wire->file.queues, WIRE_BYTES >> 20);
}

static int wire_open(struct harp_port **port, const struct harp_port_config *config, char *error)
{
  if (!config->address) {
    return harp_port_fail(error, -EINVAL,
                          "wire:%.150s: a wire cannot share the kernel's address; set "
                          "address = A.B.C.D/N",
                          config->device);
  }
  struct wire_port *wire = calloc(1, sizeof(*wire));
  if (!wire) {
    return harp_port_fail(error, -ENOMEM, "wire:%.150s: out of memory", config->device);
  }
  wire->port.ops = &harp_port_wire;
  int rc = harp_wire_join(&wire->file, config->device, config->queues, error);
  if (rc == 0) {
    size_t size = config->queues * sizeof(*wire->queues);
    wire->queues = aligned_alloc(_Alignof(struct wire_queue), size);
    if (wire->queues) {
      memset(wire->queues, 0, size);
    } else {
      rc = harp_port_fail(error, -ENOMEM, "wire:%.150s: out of memory", config->device);
    }
  }
  if (rc < 0) {
    wire_close(&wire->port);
    return rc;
  }
  wire->mask = wire->file.ring_bytes - 1;
  harp_local_ports_init(&wire->local_ports, config->ports_first, config->ports_last);
  connect_rings(wire);
  describe(wire, config);
  *port = &wire->port;
  return 0;
}

const struct harp_port_ops harp_port_wire = {
    .scheme = "wire",
    .open = wire_open,
    .close = wire_close,
    .forget = wire_forget,
    .receive = wire_receive,
    .transmit = wire_transmit,
    .flush = wire_flush,
    .descriptor = wire_descriptor,
    .arm = wire_arm,
    .reserve = wire_reserve,
    .release = wire_release,
    .reclaim = wire_reclaim,
    .count = wire_count,
};
