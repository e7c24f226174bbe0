/* SPDX-License-Identifier: Apache-2.0 */
/* Output: decides which data may be sent, and sends it. */
#ifndef HARP_STACK_TCP_OUTPUT_H
#define HARP_STACK_TCP_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

struct harp_record;
struct harp_tcp;
/* Sends lost data, then new data, as far as windows and the port allow. Calls pull; the owner may
 * close the connection. */
void tcp_output(struct harp_tcp *tcp);
/* Sends a zero-window probe, which carries the next data (RFC 9293, 3.8.6.1). false: the port is
 * full, or no memory. */
bool tcp_send_window_probe(struct harp_tcp *tcp);
/* Sends one segment of new data as a tail loss probe, regardless of cwnd. false: no data, no room
 * in the peer's window, or the port is full. It may call pull, and the owner may close the
 * connection there. */
bool tcp_send_new_probe(struct harp_tcp *tcp);
/* Retransmits up to limit bytes of a record, and splits the record there. false: the port is full,
 * or no memory for the split. */
bool tcp_retransmit(struct harp_tcp *tcp, struct harp_record *record, uint32_t limit);
/* After a timeout: retransmits the first segment if tcp_retransmit cannot, because its record is
 * longer than the loss window and none is free to split it. */
void tcp_resend_without_record(struct harp_tcp *tcp);

#endif
