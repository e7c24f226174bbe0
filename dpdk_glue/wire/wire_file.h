/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that joins the two ends of a wire: its layout, who holds which end,
 * and the doorbells beside it.
 *
 * An end is held by an open-file-description lock on one byte of the file, so
 * it is free again the moment its process is gone, however it went, and one
 * process may hold both. The file and its doorbells vanish with the last end;
 * what a killed pair left behind is made anew by the next that comes.
 */
#ifndef HARP_DPDK_GLUE_WIRE_FILE_H
#define HARP_DPDK_GLUE_WIRE_FILE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WIRE_ENDS = 2,
  WIRE_QUEUES = 16,             /* most that an end may have */
  WIRE_BYTES = 8 * 1024 * 1024, /* in flight towards one queue, all its rings together */
};

/* One writer (a queue of one end), one reader (a queue of the other). Positions
 * count bytes since creation; the ring's size is a power of two. */
struct wire_ring {
  _Alignas(64) _Atomic uint64_t written;
  _Alignas(64) _Atomic uint64_t consumed;
  _Alignas(64) _Atomic uint32_t starved; /* the writer waits for room */
};

struct wire_sleeper {
  _Alignas(64) _Atomic uint32_t asleep; /* ring the doorbell after writing */
};

struct wire_header {
  uint64_t magic;
  uint32_t version;
  uint32_t queues;
  struct wire_sleeper sleepers[WIRE_ENDS][WIRE_QUEUES];
  /* by writing end, its queue, the reader's queue */
  struct wire_ring rings[WIRE_ENDS][WIRE_QUEUES][WIRE_QUEUES];
};

struct wire_file {
  char path[108];
  int fd;
  int end; /* 0 or 1: which one is ours */
  unsigned queues;
  size_t size;
  size_t ring_bytes;
  struct wire_header *header;            /* the mapping's start */
  uint8_t *data;                         /* the rings' bytes, behind the header */
  int doorbells[WIRE_ENDS][WIRE_QUEUES]; /* FIFOs; each read by its end's queue */
};

/* Takes a free end, creating the file if need be. On failure writes one line
 * into error and returns a negative errno: -EBUSY, both ends are held. */
int harp_wire_join(struct wire_file *file, const char *path, unsigned queues, char *error);
void harp_wire_leave(struct wire_file *file);
/* In a forked child: the end is the parent's alone, and free once that has gone. */
void harp_wire_forget(struct wire_file *file);

/* The bytes of one ring. */
uint8_t *harp_wire_bytes(const struct wire_file *file, int end, unsigned from, unsigned to);

/* Wakes a sleeping poller; costs a load where it is awake. The caller has
 * fenced what it wrote before. */
void harp_wire_wake(const struct wire_file *file, int end, unsigned queue);
/* Takes back what rang at our own queue's doorbell. */
void harp_wire_quiet(const struct wire_file *file, unsigned queue);

#endif
