/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that joins the two ends of a wire: its layout, the locks on the ends, and the doorbells
 * beside it.
 *
 * A process holds an end by an open-file-description lock on one byte of the file. The kernel
 * releases the lock when the process exits in any way. One process may hold both ends. The last end
 * to leave removes the file and its doorbells. The next process that joins creates the file again
 * if both processes were killed.
 */
#ifndef HARP_DPDK_GLUE_WIRE_FILE_H
#define HARP_DPDK_GLUE_WIRE_FILE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WIRE_ENDS = 2,
  WIRE_QUEUES = 16,             /* most queues per end */
  WIRE_BYTES = 8 * 1024 * 1024, /* capacity towards one queue, all its rings together */
};

/* One writer (a queue of one end) and one reader (a queue of the other). Positions count bytes
 * since creation. The ring's size is a power of two. */
struct wire_ring {
  _Alignas(64) _Atomic uint64_t written;
  _Alignas(64) _Atomic uint64_t consumed;
  _Alignas(64) _Atomic uint32_t starved; /* the writer waits for room */
};

struct wire_sleeper {
  _Alignas(64) _Atomic uint32_t asleep; /* the writer must ring the doorbell after writing */
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
  int end; /* 0 or 1: this process's end */
  unsigned queues;
  size_t size;
  size_t ring_bytes;
  struct wire_header *header;            /* start of the mapping */
  uint8_t *data;                         /* the rings' bytes, after the header */
  int doorbells[WIRE_ENDS][WIRE_QUEUES]; /* FIFOs; the queue of that end reads it */
};

/* Takes a free end and creates the file if necessary. On failure writes one line into error and
 * returns a negative errno. -EBUSY: both ends are taken. */
int harp_wire_join(struct wire_file *file, const char *path, unsigned queues, char *error);
void harp_wire_leave(struct wire_file *file);
/* For a forked child: drops its copies, so that the end becomes free when the parent exits. */
void harp_wire_forget(struct wire_file *file);

/* Returns the bytes of one ring. */
uint8_t *harp_wire_bytes(const struct wire_file *file, int end, unsigned from, unsigned to);

/* Wakes a sleeping poller; costs one load if it is awake. The caller must put a full fence
 * between its writes and this call. */
void harp_wire_wake(const struct wire_file *file, int end, unsigned queue);
/* Clears the doorbell of our own queue. */
void harp_wire_quiet(const struct wire_file *file, unsigned queue);

#endif
