/* SPDX-License-Identifier: Apache-2.0 */
/* The receive queue: order, reassembly, SACK blocks, window. */
#ifndef HARP_STACK_TCP_RCVQ_H
#define HARP_STACK_TCP_RCVQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct harp_packet;
struct harp_pool;
struct harp_tcp;
void tcp_rcvq_payload(struct harp_tcp *tcp, uint32_t seq, const uint8_t *data, uint32_t length);
/* Of payload that begins at rcv_nxt so much was taken: stores the rest. */
void tcp_rcvq_accept(struct harp_tcp *tcp, const uint8_t *data, uint32_t length, uint32_t taken);
void tcp_rcvq_deliver(struct harp_tcp *tcp);
size_t tcp_rcvq_read(struct harp_tcp *tcp, void *data, size_t length, bool peek);
/* What waits to be read, as a chain of packets, is the caller's from now on; NULL: nothing. */
struct harp_packet *tcp_rcvq_take(struct harp_tcp *tcp);
/* Reads from such a chain, which then begins behind what was read; returns bytes. */
size_t tcp_packets_read(struct harp_pool *pool, struct harp_packet **first, void *data,
                        size_t length, bool peek);
void tcp_packets_free(struct harp_pool *pool, struct harp_packet *packet);
/* The FIN has been reached: what a peer that contradicts itself has sent beyond it goes. */
void tcp_rcvq_at_end(struct harp_tcp *tcp);
void tcp_rcvq_clear(struct harp_tcp *tcp);
/* [start, end) was there already: to be reported, with what touches it. Of several apart from
 * each other between two acknowledgements only the first is. */
void tcp_rcvq_duplicate(struct harp_tcp *tcp, uint32_t start, uint32_t end);
/* Blocks to report, the most recent first, a DSACK before them; returns how many. */
int tcp_rcvq_sacks(struct harp_tcp *tcp, uint32_t blocks[][2], int max);
/* Something was read: tell the peer if that opened the window enough. */
void tcp_window_opened(struct harp_tcp *tcp);
/* The window to advertise, bytes; the right edge never moves back. */
uint32_t tcp_rcvq_window(struct harp_tcp *tcp);

#endif
