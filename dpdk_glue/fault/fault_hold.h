/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold_us: a device that keeps its references to the application's memory for
 * so long after it was given them, and then reads that memory once more. A
 * reference that outlives its memory ends the process there.
 */
#ifndef HARP_DPDK_GLUE_FAULT_HOLD_H
#define HARP_DPDK_GLUE_FAULT_HOLD_H

#include <pthread.h>
#include <stdint.h>

#include "harp/frame.h"

struct fault_loan {
  struct fault_loan *next;
  uintptr_t start, end;
};

/* What has been lent to a port. Lent and revoked from any thread. */
struct fault_loans {
  pthread_mutex_t lock;
  struct fault_loan *first;
};

void harp_fault_references_init(struct fault_loans *loans);
void harp_fault_references_clear(struct fault_loans *loans);
/* -ENOMEM, or 0. */
int harp_fault_track_reference(struct fault_loans *loans, uintptr_t start, uintptr_t end);
void harp_fault_copy_revoked(struct fault_loans *loans, uintptr_t start, uintptr_t end);

enum { FAULT_HELD = 1024 };

struct fault_reference {
  const uint8_t *data;
  size_t length;
  uint64_t due_ns;
};

/* One queue's, oldest first; its poller's. */
struct fault_held {
  struct fault_reference references[FAULT_HELD];
  unsigned first, count;
  uint8_t sum; /* of all bytes read: what a device would have put on the wire */
};

/* Holds the parts of the frame that lie in lent memory, until due_ns; where
 * there is no room, the oldest are let go. */
void harp_fault_keep(struct fault_held *held, struct fault_loans *loans,
                     const struct harp_tx_frame *frame, uint64_t due_ns);
/* Reads and lets go what is due. */
void harp_fault_let_go(struct fault_held *held, uint64_t now_ns);
/* When the last is due; 0: none is held. */
uint64_t harp_fault_held_until(const struct fault_held *held);

#endif
