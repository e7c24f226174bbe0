/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a segment, read and written (RFC 9293, 7323, 2018). */
#ifndef HARP_STACK_TCP_OPTIONS_H
#define HARP_STACK_TCP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_segment;
struct harp_tcp;
/* Reads options into the segment; false: malformed, what came before counts. */
bool tcp_options_parse(struct harp_segment *segment, const uint8_t *options, uint32_t length);
uint32_t tcp_options_syn(const struct harp_tcp *tcp, uint8_t *out, bool with_ack);
/* Timestamp, and SACK blocks if asked for. */
uint32_t tcp_options_write(struct harp_tcp *tcp, uint8_t *out, bool with_sack);
/* The timestamp (RFC 7323) of a segment that is sent now, or was at a time, ns. */
uint32_t tcp_timestamp(const struct harp_tcp *tcp);
uint32_t tcp_timestamp_at(const struct harp_tcp *tcp, uint64_t time);

#endif
