/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing of TCP options. */
#ifndef HARP_STACK_TCP_OPTIONS_H
#define HARP_STACK_TCP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct harp_segment;
struct harp_tcp;
/* Reads the options into the segment. false: malformed; the options before the error are kept. */
bool tcp_options_parse(struct harp_segment *segment, const uint8_t *options, uint32_t length);
uint32_t tcp_options_syn(const struct harp_tcp *tcp, uint8_t *out, bool with_ack);
/* Writes the timestamp option, and SACK blocks if with_sack. Returns bytes. */
uint32_t tcp_options_write(struct harp_tcp *tcp, uint8_t *out, bool with_sack);

/* The tick of the timestamp clock, ns: within the 1 ms to 1 s of RFC 7323, 5.4. */
#define TIMESTAMP_TICK (UINT64_C(1) << 20)
/* TSval (RFC 7323) of a segment sent now, or at a time in ns. */
uint32_t tcp_timestamp(const struct harp_tcp *tcp);
uint32_t tcp_timestamp_at(const struct harp_tcp *tcp, uint64_t time);
/* Returns the time since the tick of a TSecr began, ns; 0: a time to come. */
uint64_t tcp_timestamp_age(const struct harp_tcp *tcp, uint32_t echo);

#endif
