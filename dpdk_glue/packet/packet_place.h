/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a received frame go.
 *
 * A slot is memory for one whole frame, with room in front:
 *
 *   | ... | vnet header | header_length bytes | placed | gap | next placed | the rest ... |
 *                                             ^ front
 *
 * The header ends at front. The kernel writes the `placed` bytes and the `next placed` bytes to the
 * addresses where they belong, if there is a hint. It leaves equal gaps in the slot. Copying the
 * placed bytes into these gaps makes the frame contiguous after a wrong guess. This one repair
 * covers every wrong guess.
 *
 * A frame with bytes in two places is reported as several frames, each with a header of its own.
 * The headers lie in the gaps. TCP sees the same bytes in more segments (RFC 9293, 3.8: a sender
 * may cut the stream anywhere).
 */
#ifndef HARP_DPDK_GLUE_PACKET_PLACE_H
#define HARP_DPDK_GLUE_PACKET_PLACE_H

#include "dpdk_glue/packet/packet.h"

/* Front of slot i. */
uint8_t *harp_packet_front(struct packet_queue *queue, unsigned i);

/* Prepares the first `count` slots for one receive call. hint may be NULL. Returns how many slots
 * the call may use. The last one is for the frame that reaches the end of the hint's first place:
 * the place of later frames is unknown, or depends on how much the frame has in the second one. A
 * hint without a place ends with its first frame, whose header may tell the place. */
unsigned harp_packet_prepare(struct packet_queue *queue, const struct harp_rx_hint *hint,
                             unsigned count);

/* Reports the received frame of slot i, in up to PACKET_PIECES frames. Returns their number.
 *
 * *displaced: an earlier frame of the burst was longer than its place, so its last bytes belong
 * where later frames were put. The later frames must move out before the earlier one is delivered.
 * This function sets *displaced for the frames that follow. */
int harp_packet_report(struct packet_queue *queue, unsigned i, bool *displaced,
                       struct harp_rx_frame *out);

#endif
