/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each instance always records its last events in a ring of 16-byte records. The first failure
 * writes the rings to a file (dump.h), which `harp stat --trace` reads.
 *
 * Thread: only the instance's poller records. Any thread may copy a ring; the copy omits records
 * that the poller overwrites at that time.
 */
#ifndef HARP_ENGINE_TRACE_H
#define HARP_ENGINE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "harp/engine/rundir.h"

enum harp_trace_event {
#define HARP_TRACE_EVENT(name, a, b, doc) HARP_TRACE_##name,
#include "harp/engine/trace_events.def"
#undef HARP_TRACE_EVENT
  HARP_TRACE_EVENTS
};

struct harp_trace_info {
  const char *name, *a, *b, *doc;
};

extern const struct harp_trace_info harp_trace_info[HARP_TRACE_EVENTS];

struct harp_trace_record {
  uint64_t when; /* high 48 bits: low bits of the instance's clock, ns; low 16 bits: flow */
  uint64_t what; /* from the high bits: b, 32 bits; a, 24 bits; event, 8 bits */
};

_Static_assert(sizeof(struct harp_trace_record) == 16, "four records a cache line");
_Static_assert(HARP_TRACE_EVENTS <= 256, "an event has eight bits");

struct harp_trace {
  struct harp_trace_record *records;
  uint64_t mask; /* entries - 1 */
  uint64_t head; /* records written since creation */
};

enum { HARP_TRACE_ENTRIES = 64 * 1024 }; /* 1 MiB per instance */

/* Allocates the ring. entries: a power of two. 0, -EINVAL, -ENOMEM. */
int harp_trace_create(struct harp_trace *trace, size_t entries);
void harp_trace_destroy(struct harp_trace *trace);

enum { HARP_TRACE_NO_FLOW = 0xffff };

/* Records an event. flow: the connection's local port; HARP_TRACE_NO_FLOW: the instance itself.
 * Thread: the instance's poller. */
static inline void harp_trace(struct harp_trace *trace, uint64_t now_ns, unsigned flow,
                              enum harp_trace_event event, uint32_t a, uint32_t b)
{
  uint64_t head = trace->head;
  struct harp_trace_record *record = &trace->records[head & trace->mask];

  uint64_t what = (uint64_t)b << 32 | (uint64_t)(a & 0xffffff) << 8 | (uint8_t)event;

  /* Atomic, because another thread may copy the record during the write; it drops such a record. */
  __atomic_store_n(&record->when, now_ns << 16 | (uint16_t)flow, __ATOMIC_RELAXED);
  __atomic_store_n(&record->what, what, __ATOMIC_RELAXED);
  __atomic_store_n(&trace->head, head + 1, __ATOMIC_RELEASE);
}

/* A copy of rings, to be written to a file later. */
struct harp_trace_copy;

/*
 * Copies the rings of a NIC's count instances, which takes less than a millisecond. device: the
 * NIC. reason: one line for the reader of the file. now_ns: the instances' clock. 0; -EDQUOT: the
 * process has written HARP_TRACE_DUMPS files already; -ENOMEM. The caller frees the copy.
 */
enum { HARP_TRACE_DUMPS = 8 };
int harp_trace_take(struct harp_trace_copy **copy, const struct harp_trace *const *traces,
                    unsigned count, const char *device, const char *reason, uint64_t now_ns);

/* Writes a copy to a new file in the run folder or its fallback, and the file's path to path. May
 * block on the file system. 0, or a negative errno if both folders fail. */
int harp_trace_write(const struct harp_trace_copy *copy, char path[HARP_RUN_PATH_SIZE]);

/* The device that the copy was taken for. */
const char *harp_trace_copy_device(const struct harp_trace_copy *copy);

void harp_trace_copy_free(struct harp_trace_copy *copy);

/*
 * The file: this header; `events` entries of struct harp_trace_file_event; then for each instance a
 * 64-bit count and that number of records, oldest first. Integers have the host's byte order.
 */
#define HARP_TRACE_MAGIC "HARPTRCE"

enum { HARP_TRACE_VERSION = 2 };

struct harp_trace_file {
  char magic[8];
  uint32_t version; /* HARP_TRACE_VERSION */
  uint32_t header_size;
  uint32_t event_size; /* sizeof(struct harp_trace_file_event) */
  uint32_t events;
  uint32_t instances;
  uint32_t pid;
  uint64_t now_ns;      /* the instances' clock at the dump ... */
  uint64_t realtime_ns; /* ... and CLOCK_REALTIME at the same moment */
  char release[32];
  char host[64];
  char reason[256];
  char device[256]; /* from version 2 */
};

struct harp_trace_file_event {
  char name[32], a[16], b[16];
};

#endif
