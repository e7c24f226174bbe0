/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold_us simulates a device that keeps references to the application's memory for hold_us
 * microseconds, and then reads that memory again. The read ends the process if the memory is
 * unmapped by then.
 */
#ifndef HARP_DPDK_GLUE_FAULT_HOLD_H
#define HARP_DPDK_GLUE_FAULT_HOLD_H

#include <pthread.h>
#include <stdint.h>

#include "harp/frame.h"

struct fault_mapping {
  struct fault_mapping *next;
  uintptr_t start, end;
};

/* The memory ranges that dma_map gave to a port. Any thread may add and remove. */
struct fault_mappings {
  pthread_mutex_t lock;
  struct fault_mapping *first;
};

void harp_fault_mappings_init(struct fault_mappings *mappings);
void harp_fault_mappings_clear(struct fault_mappings *mappings);
/* 0, or -ENOMEM. */
int harp_fault_mapping_add(struct fault_mappings *mappings, uintptr_t start, uintptr_t end);
/* Removes one mapping of that range. */
void harp_fault_mapping_remove(struct fault_mappings *mappings, uintptr_t start, uintptr_t end);

enum { FAULT_HELD = 1024 };

struct fault_reference {
  const uint8_t *data;
  size_t length;
  uint64_t due_ns;
};

/* One queue's references, the oldest first. Owned by the queue's poller. */
struct fault_held {
  struct fault_reference references[FAULT_HELD];
  unsigned first, count;
  uint8_t sum; /* of all bytes read, so that the compiler keeps the reads */
};

/* Keeps references to those parts of the frame that lie in mapped memory, until due_ns. Releases
 * the oldest early if there is no room. */
void harp_fault_keep(struct fault_held *held, struct fault_mappings *mappings,
                     const struct harp_tx_frame *frame, uint64_t due_ns);
/* Reads and releases the references that are due. */
void harp_fault_let_go(struct fault_held *held, uint64_t now_ns);
/* Time when the last reference is due; 0: none is held. */
uint64_t harp_fault_held_until(const struct fault_held *held);

#endif
