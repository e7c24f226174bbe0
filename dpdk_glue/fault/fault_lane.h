/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One direction of one queue of a fault port: the dice, and the frames that
 * are under way. A lane belongs to its queue's poller.
 */
#ifndef HARP_DPDK_GLUE_FAULT_LANE_H
#define HARP_DPDK_GLUE_FAULT_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk_glue/fault/fault_spec.h"
#include "harp/frame.h"

/* A frame's own copy, with what either direction says about it. */
struct fault_frame {
  struct fault_frame *next;
  uint64_t due_ns; /* goes on at this time at the latest */
  uint64_t after;  /* or, if it is late, when the lane has seen so many frames */
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
  uint64_t dice;       /* state of the generator */
  uint64_t seen;       /* frames judged */
  uint64_t burst_left; /* frames that the last drop still takes with it */
  uint64_t free_ns;    /* with rate_mbps: when the line has sent what it was given */
  uint64_t held_bytes;
  struct fault_list line; /* delayed, in order */
  struct fault_list late; /* being overtaken */
  unsigned late_count;
};

struct fault_verdict {
  bool drop;
  bool corrupt;
  bool duplicate;
  bool late;
  bool hold; /* not now: put it in the lane */
  uint64_t due_ns;
  uint64_t after;
  uint64_t corrupt_at; /* a number from which to choose the bit */
};

/* number: tells the lanes of one port apart, so that each has dice of its own. */
void harp_fault_lane_init(struct fault_lane *lane, uint64_t seed, unsigned number);
/* Frees what is still under way. */
void harp_fault_lane_clear(struct fault_lane *lane);

/* The fate of the next frame. Draws the same number of dice for every frame,
 * so a run is the same for the same seed and frames, whatever their timing. */
struct fault_verdict harp_fault_judge(struct fault_lane *lane, const struct fault_spec *spec,
                                      uint32_t length, uint64_t now_ns);

/* Copies; NULL: out of memory, or the lane holds too much already. */
struct fault_frame *harp_fault_copy_tx(const struct harp_tx_frame *frame);
struct fault_frame *harp_fault_copy_rx(const struct harp_rx_frame *frame);

/* Completes the checksum, then flips one bit behind the Ethernet header, so
 * that exactly the receiver's own check can tell. */
void harp_fault_corrupt(struct fault_frame *frame, uint64_t choice);

/* Takes the frame over; one too many is freed, as a full queue would. */
void harp_fault_hold(struct fault_lane *lane, struct fault_frame *frame,
                     const struct fault_verdict *verdict);

/* The next frame that is due, still in the lane; NULL: none. */
struct fault_frame *harp_fault_due(const struct fault_lane *lane, uint64_t now_ns);
/* Takes it out; the caller frees it. */
void harp_fault_remove(struct fault_lane *lane, struct fault_frame *frame);
/* When time alone makes a frame due; UINT64_MAX: none is held. */
uint64_t harp_fault_next_due(const struct fault_lane *lane);

#endif
