/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: the stack's interface for an engine that owns the poll loop, and for
 * an upper layer that sends references to its own memory and takes received
 * bytes where they lie. The sockets of harp/stack.h are one such upper layer.
 *
 * Thread: the stack's. The callbacks run inside harp_stack_receive, _advance,
 * _flush and the flow calls; they may call flow functions, but not receive,
 * advance or flush.
 */
#ifndef HARP_STACK_FLOW_H
#define HARP_STACK_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/frame.h"
#include "harp/stack.h"

struct harp_tcp; /* a connection: RFC 9293's transmission control block */
struct harp_listener;

struct harp_flow_ops {
  /* A listener's connection is established: set its ops and user with
   * harp_flow_attach and return 0, or return a negative errno to reset it. */
  int (*accept)(void *user, struct harp_tcp *tcp);
  /* Of a listener: whether accept would find no room now. The handshake is not completed then,
   * and the peer tries again. NULL: there always is. */
  bool (*full)(void *user);
  /* An active open has succeeded. */
  void (*established)(void *user, struct harp_tcp *tcp);
  /* Nothing unsent is queued, or only a short tail that Nagle holds back, and the
   * window has room for that many bytes: harp_flow_push what there is. NULL:
   * everything is pushed unasked. */
  void (*pull)(void *user, struct harp_tcp *tcp, uint32_t room);
  /* Payload in order, each byte once. Returns how many bytes were taken; the
   * rest waits in the stack, against the window, until harp_flow_resume.
   * NULL: everything waits, for harp_flow_read. */
  size_t (*deliver)(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);
  /* Where the next so many bytes of payload will go, in one piece, or NULL. A segment that nobody
   * has summed yet may be copied there while it is: deliver is then given that place, or the
   * segment was wrong, and what was written there is not yet received. The function may be NULL. */
  uint8_t *(*rx_buffer)(void *user, struct harp_tcp *tcp, uint32_t length);
  /* That many more of the pushed bytes are acknowledged; their memory is free. */
  void (*acked)(void *user, struct harp_tcp *tcp, uint32_t bytes);
  /* New payload or the peer's FIN waits to be read (flows without deliver: payload too). The FIN
   * behind what deliver had left is told of when harp_flow_resume has handed over the last of it.
   */
  void (*readable)(void *user, struct harp_tcp *tcp);
  /* The last call for this flow, which may take what waits to be read (tcp_rcvq_take); tcp is
   * invalid afterwards. error: 0 after an orderly close, else a negative errno (-ECONNRESET,
   * -ETIMEDOUT, ...). */
  void (*closed)(void *user, struct harp_tcp *tcp, int error);
};

/* What explains later why a connection was slow, or failed. b: sequence numbers
 * count from the connection's first byte. */
enum harp_stack_event {
  HARP_EVENT_RETRANSMIT, /* a: bytes, b: the first of them */
  HARP_EVENT_RECOVERY, /* of a loss begins. a: the congestion window before, KiB; b: up to where */
  HARP_EVENT_TIMEOUT,  /* the RTO. a: how many in a row, b: the first byte not acknowledged */
  HARP_EVENT_WINDOW_CLOSED, /* the peer has no room. b: its window's edge */
  HARP_EVENT_RESET,         /* by the peer. b: what was expected of it next */
  HARP_EVENTS
};

/* How an engine drives a stack, beside the callbacks of harp/stack.h. */
struct harp_stack_io {
  void *user;
  /* 0: taken. -EAGAIN: no room; offered again after the next flush. Other
   * errors: the frame is lost, as on any wire. */
  int (*transmit)(void *user, const struct harp_tx_frame *frame);
  /* For a trace; NULL: not wanted. */
  void (*event)(void *user, uint16_t local_port, enum harp_stack_event event, uint32_t a,
                uint32_t b);
  uint32_t offloads;  /* HARP_OFFLOAD_* */
  uint32_t max_frame; /* with HARP_OFFLOAD_TSO: largest frame, bytes */
  /* Whether listeners hear this address (network order); to others their ports are closed.
   * NULL: they hear all. */
  bool (*admits)(void *user, uint32_t address);
  bool only_asks;     /* somebody else answers ARP and ICMP for the address */
  bool tentative;     /* the address is not used before harp_stack_use_address */
  uint64_t *counters; /* HARP_COUNTERS words; NULL: the stack's own */
};

int harp_stack_create_io(struct harp_stack **stack, const struct harp_stack_config *config,
                         const struct harp_stack_io *io);
/* One frame of a burst; not kept. Acknowledgements wait for the flush. */
int harp_stack_receive(struct harp_stack *stack, const struct harp_rx_frame *frame);
/* Ends a burst: output and acknowledgements, once per connection. */
void harp_stack_flush(struct harp_stack *stack);
/* Sets the time without running what is due (advance does both). */
void harp_stack_set_time(struct harp_stack *stack, uint64_t now_ns);
/* Nobody drove the stack for pause ns until now (a stopped process, a busy host). The user timeout
 * and keepalives measure a peer's silence; they do not count this time. */
void harp_stack_account_pause(struct harp_stack *stack, uint64_t pause_ns);
uint64_t *harp_stack_counters(struct harp_stack *stack);
/* RFC 5227, 2.1: an ARP probe, a request for our own address that names no sender's. While the
 * address is tentative the stack answers neither ARP nor IP for it, and nothing may be opened. How
 * many probes there are, and how far apart, is the caller's to decide. */
void harp_stack_probe(struct harp_stack *stack);
/* Ends the tentative state. -EADDRINUSE: another host has the address, or wants it at the same
 * time; it stays tentative then, for good. */
int harp_stack_use_address(struct harp_stack *stack);
/* Whether another host has claimed our address since the stack was created: with its hardware
 * address, the last one's if there were several. */
bool harp_stack_conflict(const struct harp_stack *stack, uint8_t mac[6]);
/* RFC 5227, 2.3: the announcement by which a host says that it has the address. From then on the
 * stack defends it (2.4 b) by one more announcement, but by none within 10 s of another conflict.
 * It keeps the address in any case. */
void harp_stack_announce(struct harp_stack *stack);

/* Addresses in network order, ports in host order. */
struct harp_endpoint {
  uint32_t address;
  uint16_t port;
};

/* 0: any free local port. -EADDRINUSE, -ENOBUFS, -ENETUNREACH. */
int harp_flow_connect(struct harp_stack *stack, uint16_t local_port, struct harp_endpoint peer,
                      const struct harp_flow_ops *ops, void *user, struct harp_tcp **tcp);
/* backlog: connections in handshake at once. */
int harp_flow_listen(struct harp_stack *stack, uint16_t local_port, uint32_t backlog,
                     const struct harp_flow_ops *ops, void *user, struct harp_listener **listener);
void harp_flow_unlisten(struct harp_listener *listener);
void harp_flow_attach(struct harp_tcp *tcp, const struct harp_flow_ops *ops, void *user);

/* Appends a reference: the memory stays unchanged until it is acked (or the
 * flow closed). end: a segment ends here, so that the next one begins with what
 * is pushed next. -ENOBUFS: too many references wait; -EPIPE: closed. */
int harp_flow_push(struct harp_tcp *tcp, const void *data, uint32_t length, bool end);
/* How many more references push takes now. */
uint32_t harp_flow_room(const struct harp_tcp *tcp);
/* There is something to pull again. */
void harp_flow_ready(struct harp_tcp *tcp);
/* Offers again what deliver left. */
void harp_flow_resume(struct harp_tcp *tcp);
/* fresh goes on for old, of the same stack: it inherits what old has received
 * in order and not delivered. old is gone without a word to the peer, and
 * without closed(). */
void harp_flow_replace(struct harp_tcp *fresh, struct harp_tcp *old);
/* FIN after everything that was pushed. closed() follows when both sides are done. */
void harp_flow_close(struct harp_tcp *tcp);
/* RST; closed() is not called, nothing of the user's is referenced any more. */
void harp_flow_abort(struct harp_tcp *tcp);
/* The peer is a HARP host: acknowledge every burst, use this RTO floor, keep
 * the congestion window over idle times. */
void harp_flow_set_harp_peer(struct harp_tcp *tcp, uint32_t rto_min_us);
/* 0 disables. The bound on time without progress while data is unacknowledged (RFC 5482). */
void harp_flow_set_timeout(struct harp_tcp *tcp, uint32_t timeout_ms);
void harp_flow_set_keepalive(struct harp_tcp *tcp, uint32_t idle_ms, uint32_t interval_ms,
                             uint32_t probes);
/* Asks the peer for a sign of life, by a segment that it must answer. */
void harp_flow_probe(struct harp_tcp *tcp);
/* The peer is silent: asks by ARP whether its host still answers for the address. */
void harp_flow_probe_neighbour(struct harp_tcp *tcp);
/* Nothing waits in the receive queue: the next bytes on the wire are the next to be delivered. */
bool harp_flow_rcv_queue_empty(const struct harp_tcp *tcp);
/* Bytes of TCP/IP headers that the peer's data segments carry. */
uint16_t harp_flow_header_length(const struct harp_tcp *tcp);
/* The peer has closed its side, and everything before was delivered. */
bool harp_flow_at_end(const struct harp_tcp *tcp);
/* Everything pushed is acknowledged, and so is our FIN if it was queued. */
bool harp_flow_drained(const struct harp_tcp *tcp);
struct harp_endpoint harp_flow_peer(const struct harp_tcp *tcp);
uint16_t harp_flow_local_port(const struct harp_tcp *tcp);

struct harp_flow_view {
  uint8_t state;                                             /* enum of <netinet/tcp.h> */
  uint32_t cwnd, ssthresh, send_window, receive_window, mss; /* bytes */
  uint32_t srtt_us, rttvar_us, min_rtt_us, rto_us;
  uint32_t in_flight, retransmits;
  uint32_t unacked;       /* bytes pushed and not acknowledged */
  uint32_t probes;        /* keepalive or window probes without an answer */
  uint64_t last_progress; /* ns: last acknowledgement of something, or sign of a closed window */
  uint64_t last_receive;  /* ns: last acceptable segment from the peer */
  uint64_t arp_failed;    /* ns: when the peer's host last left a round of ARP requests without an
                           * answer; 0: it has answered since, or is behind a gateway */
  uint64_t bytes_in, bytes_out;
};
void harp_flow_view(const struct harp_tcp *tcp, struct harp_flow_view *view);

#endif
