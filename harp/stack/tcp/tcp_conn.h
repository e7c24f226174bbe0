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
/* ports: the remote one in the upper half, as they lie in a received header. */
static inline uint64_t tcp_key(uint32_t remote_address, uint32_t ports)
{
  return (uint64_t)remote_address << 32 | ports;
}
/* Multiply-shift under a secret odd multiplier: universal, so nobody can aim at a bucket. */
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

struct harp_tcp *tcp_lookup(struct harp_stack *stack, uint32_t remote_address, uint16_t remote_port,
                            uint16_t local_port);
struct harp_listener *tcp_listener(struct harp_stack *stack, uint16_t port);
/* Whether its owner takes no more connections for now: a peer's SYN or the last segment of its
 * handshake is dropped then, and counted, as Linux does. The peer tries again. */
bool tcp_listener_full(struct harp_listener *listener);
/* A connection as it is before anything was sent, not in the table; false: no route. */
bool tcp_initialise(struct harp_tcp *tcp, struct harp_stack *stack, struct harp_endpoint peer,
                    uint16_t local_port);
void tcp_set_iss(struct harp_tcp *tcp, uint32_t iss);
/* The listener's settings, and what the peer's SYN says. */
void tcp_take_syn(struct harp_tcp *tcp, const struct harp_listener *listener,
                  const struct harp_segment *syn);
enum tcp_opening {
  OPENING_SYN,    /* may be a flood's: only a handshake that has had its time makes room for it */
  OPENING_COOKIE, /* the peer is there, so any handshake does */
  OPENING_OWN,    /* from here: the same, and an eighth of the places is kept for these */
};
/* In the table, in state CLOSE, owned by nobody; NULL: no memory or no route. */
struct harp_tcp *tcp_create(struct harp_stack *stack, struct harp_endpoint peer,
                            uint16_t local_port, enum tcp_opening opening);
void tcp_set_state(struct harp_tcp *tcp, uint8_t state);
void tcp_become_established(struct harp_tcp *tcp);
/* What the peer offered in its SYN. */
void tcp_take_syn_options(struct harp_tcp *tcp, const struct harp_segment *segment);
void tcp_set_mss(struct harp_tcp *tcp);
/* Enters TIME-WAIT. */
void tcp_time_wait(struct harp_tcp *tcp);
/* In TIME-WAIT the owner has everything: it is told closed(0), and the block waits alone. */
void tcp_owner_done(struct harp_tcp *tcp);
/* The wait begins again. */
void tcp_time_wait_again(struct harp_tcp *tcp);
/* Its owner lets go: it finishes alone. */
void tcp_detach(struct harp_tcp *tcp);
/* Reports closed(error) once, unless the owner has let go, and frees. */
void tcp_finish(struct harp_tcp *tcp, int error);
/* Nobody answers for this neighbour: attempts to open through it end, and it may be gone then. */
void tcp_neighbour_failed(struct harp_neighbour *neighbour);
/* A free local port for this peer (RFC 6056, 3.3.3); 0: none. */
uint16_t tcp_choose_port(struct harp_stack *stack, struct harp_endpoint peer);

/* Handshakes under way, of peers. Whoever joins leaves by tcp_become_established or tcp_finish. */
void tcp_join_half_open(struct harp_listener *listener, struct harp_tcp *tcp);
/* Ends the oldest handshake of a list to make room. least: ns that it has lasted; 0: any. false:
 * there is none (NULL), it is younger, or its peer has answered and waits for the accept queue. */
bool tcp_drop_half_open(struct harp_stack *stack, struct harp_tcp *oldest, uint64_t least);
/* The first of a list by tcp->turn; NULL: it is empty. */
struct harp_tcp *tcp_oldest_of(struct harp_list *turns);

#endif
