/* SPDX-License-Identifier: Apache-2.0 */
/* Segments out: what may be sent, and sending it. */
#ifndef HARP_STACK_TCP_OUTPUT_H
#define HARP_STACK_TCP_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_record;
struct harp_segment;
struct harp_stack;
struct harp_tcp;
void tcp_output(struct harp_tcp *tcp);
/* A zero-window probe: the next byte, as a record (RFC 9293, 3.8.6.1). false: the port is full. */
bool tcp_send_window_probe(struct harp_tcp *tcp);
/* A tail probe of new data, beyond the congestion window, as a record. false: there is none that
 * the peer has room for, or the port is full; the owner, asked for some, may have closed. */
bool tcp_send_new_probe(struct harp_tcp *tcp);
/* Sends up to limit bytes of a record again; cuts the record there. false: the
 * port is full. */
bool tcp_retransmit(struct harp_tcp *tcp, struct harp_record *record, uint32_t limit);

#endif
