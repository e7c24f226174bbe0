/* SPDX-License-Identifier: Apache-2.0 */
/* The connection table; opening, closing, TIME-WAIT. */
#ifndef HARP_STACK_TCP_CONN_H
#define HARP_STACK_TCP_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/flow.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"

struct harp_listener;
struct harp_neighbour;
struct harp_segment;
struct harp_stack;
struct harp_tcp;
/* ports: the remote port in the upper half, the order of a received header. */
static inline uint64_t tcp_key(uint32_t remote_address, uint32_t ports)
{
  return (uint64_t)remote_address << 32 | ports;
}
/* Multiply-shift hashing with a secret odd multiplier. It is universal, so an attacker cannot
 * choose addresses and ports that fall into one bucket. */
static inline struct harp_tcp **tcp_bucket(const struct harp_stack *stack, uint64_t key)
{
  return &stack->buckets[key * stack->bucket_multiplier >> stack->bucket_shift];
}

static inline struct harp_tcp *tcp_find(const struct harp_stack *stack, uint64_t key)
{
  struct harp_tcp *tcp = *tcp_bucket(stack, key);
  while (tcp && tcp->key != key) {
    tcp = tcp->hash_next;
  }
  return tcp;
}

/* Finds a connection or a listener. Addresses in network order, ports in host order. NULL: none. */
struct harp_tcp *tcp_lookup(struct harp_stack *stack, uint32_t remote_address, uint16_t remote_port,
                            uint16_t local_port);
struct harp_listener *tcp_listener(struct harp_stack *stack, uint16_t port);
/* Whether the listener's owner takes no more connections now; counts it. The caller then drops the
 * SYN or the last ACK of the handshake, as Linux does. The peer retransmits it. */
bool tcp_listener_full(struct harp_listener *listener);
/* Initialises a connection without adding it to the table; false: no route. */
bool tcp_initialise(struct harp_tcp *tcp, struct harp_stack *stack, struct harp_endpoint peer,
                    uint16_t local_port);
void tcp_set_iss(struct harp_tcp *tcp, uint32_t iss);
/* Takes the listener's settings and the values of the peer's SYN. */
void tcp_take_syn(struct harp_tcp *tcp, const struct harp_listener *listener,
                  const struct harp_segment *syn);
enum tcp_opening {
  OPENING_SYN, /* may be part of a SYN flood: it can replace only a half-open connection older than
                  HALF_OPEN_LEAST_NS */
  OPENING_COOKIE, /* the cookie proves the peer: it can replace any half-open connection */
  OPENING_OWN,    /* an active open: the same, and one eighth of the places is reserved for these */
};
/* Creates a connection in state CLOSED without an owner and adds it to the table. NULL: no memory
 * or no route. */
struct harp_tcp *tcp_create(struct harp_stack *stack, struct harp_endpoint peer,
                            uint16_t local_port, enum tcp_opening opening);
/* Changes the state, and the gauge of established connections. */
void tcp_set_state(struct harp_tcp *tcp, uint8_t state);
/* The handshake is complete: enters ESTABLISHED and calls established() or the listener's accept().
 * The connection may be closed on return. */
void tcp_become_established(struct harp_tcp *tcp);
/* Takes the options of the peer's SYN. */
void tcp_take_syn_options(struct harp_tcp *tcp, const struct harp_segment *segment);
/* Computes snd.mss again from the peer's MSS, the MTU, TCP_MAXSEG and the options. */
void tcp_set_mss(struct harp_tcp *tcp);
/* A router has told a path MTU, bytes: lowers snd.mss, and marks all data in flight lost. false:
 * the MTU is not lower than the one in use. */
bool tcp_lower_path_mtu(struct harp_tcp *tcp, uint32_t mtu);
/* Enters TIME-WAIT. */
void tcp_time_wait(struct harp_tcp *tcp);
/* The owner has read everything in TIME-WAIT: calls closed(0). The block stays until the timer
 * expires. */
void tcp_owner_done(struct harp_tcp *tcp);
/* Starts the TIME-WAIT timer, or starts it again. */
void tcp_time_wait_start_timer(struct harp_tcp *tcp);
/* The owner has closed the connection. The stack finishes it alone. */
void tcp_detach(struct harp_tcp *tcp);
/* Calls closed(error), unless the connection is detached, and frees the connection at the next
 * flush. */
void tcp_finish(struct harp_tcp *tcp, int error);
/* The neighbour has not answered. Ends every connection in SYN-SENT through it with -EHOSTUNREACH.
 * The neighbour may be freed on return. */
void tcp_neighbour_failed(struct harp_neighbour *neighbour);
/* Returns a free local port for this peer (RFC 6056, 3.3.3); 0: none. */
uint16_t tcp_choose_port(struct harp_stack *stack, struct harp_endpoint peer);

/* Half-open connections of listeners. tcp_become_established and tcp_finish remove them again. */
void tcp_join_half_open(struct harp_listener *listener, struct harp_tcp *tcp);
/* Drops the half-open connection `oldest` to make room; NULL: there is none. least > 0: only if it
 * is at least `least` ns old and its handshake is not complete; 0: in any case. Returns whether it
 * was dropped. */
bool tcp_drop_half_open(struct harp_stack *stack, struct harp_tcp *oldest, uint64_t least);
/* Returns the first connection of a list linked by tcp->turn; NULL: the list is empty. */
struct harp_tcp *tcp_oldest_of(struct harp_list *turns);

#endif
