/* SPDX-License-Identifier: Apache-2.0 */
/* The receive queue: reassembly, SACK blocks and receive window. */
#ifndef HARP_STACK_TCP_RCVQ_H
#define HARP_STACK_TCP_RCVQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct harp_packet;
struct harp_pool;
struct harp_tcp;
/* Payload begins at seq; the caller has trimmed it to the window. Delivers it, queues it, or stores
 * it out of order. The owner may close the connection. */
void tcp_rcvq_payload(struct harp_tcp *tcp, uint32_t seq, const uint8_t *data, uint32_t length);
/* Accepts payload that begins at RCV.NXT. The owner took `taken` bytes; stores the rest. */
void tcp_rcvq_accept(struct harp_tcp *tcp, const uint8_t *data, uint32_t length, uint32_t taken);
/* Delivers the receive queue, as far as the owner takes it. The owner may close the connection. */
void tcp_rcvq_deliver(struct harp_tcp *tcp);
/* Copies from the receive queue and returns the bytes copied. peek: they stay there. */
size_t tcp_rcvq_read(struct harp_tcp *tcp, void *data, size_t length, bool peek);
/* Passes the receive queue to the caller as a chain of packets, which the caller must free; NULL:
 * empty. */
struct harp_packet *tcp_rcvq_take(struct harp_tcp *tcp);
/* Reads from such a chain and returns the bytes read. It frees the packets that were read, unless
 * peek is set. */
size_t tcp_packets_read(struct harp_pool *pool, struct harp_packet **first, void *data,
                        size_t length, bool peek);
void tcp_packets_free(struct harp_pool *pool, struct harp_packet *packet);
/* Frees the out-of-order blocks: data that the peer has sent beyond its FIN, once RCV.NXT has
 * passed the FIN. */
void tcp_rcvq_drop_out_of_order(struct harp_tcp *tcp);
/* Frees the receive queue and the out-of-order queue. */
void tcp_rcvq_clear(struct harp_tcp *tcp);
/* [start, end) was received before: reports it by DSACK (RFC 2883). Adjacent ranges are merged.
 * Only the first of several separate ranges between two acknowledgements is reported. */
void tcp_rcvq_duplicate(struct harp_tcp *tcp, uint32_t start, uint32_t end);
/* Writes the SACK blocks to send: a DSACK first, then the most recent blocks. Returns how many. */
int tcp_rcvq_sacks(struct harp_tcp *tcp, uint32_t blocks[][2], int max);
/* The owner has read data: sends a window update if the window has grown enough. */
void tcp_window_opened(struct harp_tcp *tcp);
/* Returns the window to advertise, bytes. */
uint32_t tcp_rcvq_window(struct harp_tcp *tcp);

#endif
