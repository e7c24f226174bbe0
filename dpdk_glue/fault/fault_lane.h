/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of one queue of a fault port: its random numbers, and the frames on their way. A
 * lane belongs to its queue's poller.
 */
#ifndef HARP_DPDK_GLUE_FAULT_LANE_H
#define HARP_DPDK_GLUE_FAULT_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/fault/fault_spec.h"
#include "harp/frame.h"

/* A private copy of a frame, with the metadata of either direction. */
struct fault_frame {
  struct fault_frame *next;
  uint64_t due_ns; /* latest time to pass the frame on */
  uint64_t after;  /* a late frame also passes on when the lane has seen this many frames */
  uint32_t length;
  uint16_t header_length;
  uint16_t segment_size;
  uint16_t checksum_start, checksum_offset; /* sending */
  uint8_t checksum_needed;                  /* sending */
  uint8_t checksum_good;                    /* receiving */
  uint8_t bytes[];
};

struct fault_list {
  struct fault_frame *first, *last;
};

struct fault_lane {
  uint64_t dice;       /* state of the random number generator */
  uint64_t seen;       /* frames judged */
  uint64_t burst_left; /* frames that the current burst of drops still takes */
  uint64_t free_ns;    /* with rate_mbps: time when the line has sent all queued frames */
  uint64_t held_bytes;
  struct fault_list line; /* delayed, in order */
  struct fault_list late; /* frames that others overtake */
  unsigned late_count;
};

struct fault_verdict {
  bool drop;
  bool corrupt;
  bool duplicate;
  bool late;
  bool hold; /* put the frame in the lane instead of passing it on now */
  uint64_t due_ns;
  uint64_t after;
  uint64_t corrupt_at; /* random number that selects the bit */
};

/* number: identifies the lane within the port and gives it its own random sequence. */
void harp_fault_lane_init(struct fault_lane *lane, uint64_t seed, unsigned number);
/* Frees the frames that are still on their way. */
void harp_fault_lane_clear(struct fault_lane *lane);

/* Decides the faults for the next frame. Always draws the same number of random numbers, so the
 * same seed and frames give the same faults at any timing. */
struct fault_verdict harp_fault_judge(struct fault_lane *lane, const struct fault_spec *spec,
                                      uint32_t length, uint64_t now_ns);

/* Copy a frame. NULL: out of memory. */
struct fault_frame *harp_fault_copy_tx(const struct harp_tx_frame *frame);
struct fault_frame *harp_fault_copy_rx(const struct harp_rx_frame *frame);

/* Completes the checksum, then flips one bit after the Ethernet header. Only the receiver's
 * checksum check can then detect the error. A checksum that looks incomplete would hide it, so
 * there the bit is one of the checksum. */
void harp_fault_corrupt(struct fault_frame *frame, uint64_t choice);

/* Takes ownership of the frame. Frees it if the lane is full, like a full queue. */
void harp_fault_hold(struct fault_lane *lane, struct fault_frame *frame,
                     const struct fault_verdict *verdict);

/* Returns the next due frame, which stays in the lane; NULL: none. */
struct fault_frame *harp_fault_due(const struct fault_lane *lane, uint64_t now_ns);
/* Removes the frame from the lane; the caller frees it. */
void harp_fault_remove(struct fault_lane *lane, struct fault_frame *frame);
/* Earliest due_ns of all frames; UINT64_MAX: none is held. */
uint64_t harp_fault_next_due(const struct fault_lane *lane);

#endif
