/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: the stack's interface for an engine and for an upper layer. The engine runs the poll
 * loop. The upper layer sends references to its own memory, and reads received bytes in place
 * without a copy. The sockets of harp/stack.h are one such upper layer.
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
struct harp_packet; /* a packet buffer of the stack */
struct harp_socket_table;

struct harp_flow_ops {
  /* A listener's connection is established. The callback sets its ops and user with
   * harp_flow_attach and returns 0, or returns a negative errno to reset it. */
  int (*accept)(void *user, struct harp_tcp *tcp);
  /* For listeners: returns whether accept has no room now. The stack then drops the segment, and
   * the peer retransmits it. NULL: accept always has room. */
  bool (*full)(void *user);
  /* An active open has succeeded. */
  void (*established)(void *user, struct harp_tcp *tcp);
  /* The flow can take `room` more bytes: the send queue has no unsent data, or only a short segment
   * that Nagle's algorithm delays. The owner calls harp_flow_push with its next data. room is at
   * least 1, also while the peer's window is closed. NULL: the owner pushes without this call. */
  void (*pull)(void *user, struct harp_tcp *tcp, uint32_t room);
  /* Payload in order, each byte once. Returns how many bytes the owner took. The rest stays in the
   * receive queue until harp_flow_resume, and reduces the window. NULL: all payload stays in the
   * receive queue, for harp_flow_read. */
  size_t (*deliver)(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);
  /* Returns the contiguous memory for the next `length` bytes of payload, or NULL. The stack may
   * copy a segment there while it computes the checksum. deliver gets that address only if the
   * checksum is right. Otherwise the bytes there are not received, and a later segment overwrites
   * them. The function pointer may be NULL. */
  uint8_t *(*rx_buffer)(void *user, struct harp_tcp *tcp, uint32_t length);
  /* The peer has acknowledged `bytes` more of the pushed bytes. The owner may reuse their memory.
   */
  void (*acked)(void *user, struct harp_tcp *tcp, uint32_t bytes);
  /* The receive queue has new payload, or the peer's FIN has arrived. harp_flow_resume makes
   * this call again after the last byte if deliver left payload before the FIN. */
  void (*readable)(void *user, struct harp_tcp *tcp);
  /* The last call for this flow. The owner may take unread payload now (harp_flow_take). tcp is
   * invalid after the call. error: 0 after an orderly close, else a negative errno (-ECONNRESET,
   * -ETIMEDOUT, ...). */
  void (*closed)(void *user, struct harp_tcp *tcp, int error);
};

/* No callbacks: for a connection without an owner. */
extern const struct harp_flow_ops harp_flow_no_ops;

/* Trace events. They explain later why a connection was slow or failed. A connection's
 * time-sequence graph can be drawn from them. Field b is a byte offset: 0 is the first byte of the
 * connection. */
enum harp_stack_event {
  HARP_EVENT_RETRANSMIT,    /* a: bytes; b: the first byte */
  HARP_EVENT_RECOVERY,      /* fast recovery begins. a: congestion window before, KiB; b: SND.NXT */
  HARP_EVENT_TIMEOUT,       /* the RTO expired. a: doublings of the RTO; b: SND.UNA */
  HARP_EVENT_WINDOW_CLOSED, /* zero window. b: right edge of the peer's window */
  HARP_EVENT_RESET,         /* the peer sent a RST. b: RCV.NXT */
  HARP_EVENT_SENT,          /* new data. a: bytes; b: the first byte */
  HARP_EVENT_ACKED,         /* an acknowledgement. a: SND.WND, KiB; b: SND.UNA */
  HARP_EVENT_LOST,          /* data is taken for lost. a: bytes; b: the first byte */
  HARP_EVENTS
};

/* The engine's callbacks and settings. They replace the callbacks of harp/stack.h. */
struct harp_stack_io {
  void *user;
  /* 0: the port took the frame. -EAGAIN: the port's queue is full; the stack tries again at a later
   * flush. Other errors: the frame is lost, as on a wire. */
  int (*transmit)(void *user, const struct harp_tx_frame *frame);
  /* Receives the trace events; NULL: no trace. */
  void (*event)(void *user, uint16_t local_port, enum harp_stack_event event, uint32_t a,
                uint32_t b);
  uint32_t offloads;  /* HARP_OFFLOAD_* */
  uint32_t max_frame; /* with HARP_OFFLOAD_TSO: the largest frame, bytes */
  /* Returns whether listeners accept segments from this address (network order). Other peers get a
   * RST, as from a closed port. NULL: listeners accept all addresses. */
  bool (*admits)(void *user, uint32_t address);
  bool only_asks;     /* the kernel or another stack answers ARP and ICMP for the address */
  bool tentative;     /* the address stays unused until harp_stack_use_address */
  uint64_t *counters; /* HARP_COUNTERS words; NULL: the stack's own */
};

/* The caller owns *stack (harp_stack_destroy). *config and *io are copied; io->counters is
 * borrowed. -EINVAL: a field is out of range, or there is no transmit; -ENOMEM. */
int harp_stack_create_io(struct harp_stack **stack, const struct harp_stack_config *config,
                         const struct harp_stack_io *io);
/* Receives one frame of a burst. The frame is valid during the call only. Acknowledgements to HARP
 * hosts wait for the flush. Returns 0, or -EINVAL for a malformed or truncated frame. */
int harp_stack_receive(struct harp_stack *stack, const struct harp_rx_frame *frame);
/* Ends a burst: sends the due data and acknowledgements of each connection. */
void harp_stack_flush(struct harp_stack *stack);
/* Sets the time, ns, but runs no timer (harp_stack_advance does both). */
void harp_stack_set_time(struct harp_stack *stack, uint64_t now_ns);
/* The engine did not run for the last pause_ns ns, because the process was stopped or the host was
 * busy. The user timeout and keepalive do not count this time as silence of the peer, and no RTT
 * sample includes it. Called before the first harp_stack_receive after the pause. */
void harp_stack_account_pause(struct harp_stack *stack, uint64_t pause_ns);
uint64_t *harp_stack_counters(struct harp_stack *stack);
/* Returns the sockets of harp/stack.h; only their layer knows what they are. */
struct harp_socket_table *harp_stack_sockets(const struct harp_stack *stack);
/* Sends an ARP probe (RFC 5227, 2.1): a request for our own address, with sender address 0. The
 * stack answers neither ARP nor IP for a tentative address, and the caller must not open
 * connections before the address is its own. The caller decides the number of probes and their
 * interval. */
void harp_stack_probe(struct harp_stack *stack);
/* Ends the tentative state. -EADDRINUSE: another host has the address, or probes for it at the same
 * time; the address then stays tentative for the life of the stack. */
int harp_stack_use_address(struct harp_stack *stack);
/* Returns whether another host has claimed our address since the stack was created. mac: that
 * host's hardware address; after several conflicts the latest one. */
bool harp_stack_conflict(const struct harp_stack *stack, uint8_t mac[6]);
/* Sends an ARP announcement (RFC 5227, 2.3). From then on the stack answers a conflict with one
 * more announcement (2.4 b), but not within 10 s of another conflict. It keeps the address in any
 * case. */
void harp_stack_announce(struct harp_stack *stack);

/* Addresses in network order, ports in host order. */
struct harp_endpoint {
  uint32_t address;
  uint16_t port;
};

/* Opens a connection from local_port; 0: any free one. The next flush sends the SYN. The caller
 * owns *tcp until closed() is called, or until harp_flow_abort or harp_flow_discard. Errors:
 * -EINVAL: the peer's address or port is 0; -EADDRINUSE: the local port has a connection to this
 * peer, or no port is free; -ENETUNREACH: the address is outside the prefix, and there is no
 * gateway; -ENOBUFS: no connection block is free. */
int harp_flow_connect(struct harp_stack *stack, uint16_t local_port, struct harp_endpoint peer,
                      const struct harp_flow_ops *ops, void *user, struct harp_tcp **tcp);
/* local_port: host order. backlog: most connections in SYN-RECEIVED at once. *listener is valid
 * until harp_flow_unlisten. -EADDRINUSE: the port has a listener; -ENOBUFS: no listener is free. */
int harp_flow_listen(struct harp_stack *stack, uint16_t local_port, uint32_t backlog,
                     const struct harp_flow_ops *ops, void *user, struct harp_listener **listener);
/* Resets the listener's handshakes and frees it. */
void harp_flow_unlisten(struct harp_listener *listener);
void harp_flow_set_backlog(struct harp_listener *listener, uint32_t backlog);
/* Returns whether a listener has this local port. */
bool harp_flow_listening(struct harp_stack *stack, uint16_t local_port);
/* Returns a local port that no listener has, and no connection to this peer; 0: none is free. */
uint16_t harp_flow_choose_port(struct harp_stack *stack, struct harp_endpoint peer);
/* Replaces the callbacks and their user. Calls none of them. */
void harp_flow_attach(struct harp_tcp *tcp, const struct harp_flow_ops *ops, void *user);

/* Appends a reference to data. The owner keeps the memory unchanged until acked reports it or the
 * flow is closed. end: a segment ends here, so the next push begins a new segment. -ENOBUFS: too
 * many references are queued; -EPIPE: the sending side is closed. */
int harp_flow_push(struct harp_tcp *tcp, const void *data, uint32_t length, bool end);
/* Returns how many more references harp_flow_push takes now. */
uint32_t harp_flow_room(const struct harp_tcp *tcp);
/* The owner has new data: the next flush calls pull if the flow can send. */
void harp_flow_ready(struct harp_tcp *tcp);
/* Calls deliver again with the bytes that it left in the receive queue. */
void harp_flow_resume(struct harp_tcp *tcp);

/* For owners that copy. The stack's connections share its packet buffers. One quarter of them is
 * reserved for receiving. */

/* Copies data into packet buffers and appends it, for the flush after harp_flow_ready. Returns the
 * bytes copied; fewer than length: no packet buffer or no reference is free. */
size_t harp_flow_write(struct harp_tcp *tcp, const void *data, size_t length);
/* Returns whether harp_flow_write may take one more packet buffer now. */
bool harp_flow_has_buffer(const struct harp_stack *stack);
/* Returns the bytes in the receive queue. */
uint32_t harp_flow_unread(const struct harp_tcp *tcp);
/* Copies from the receive queue and returns the bytes copied. peek: they stay there. Otherwise the
 * next flush sends a window update if the window has grown enough. */
size_t harp_flow_read(struct harp_tcp *tcp, void *data, size_t length, bool peek);
/* Passes the receive queue to the caller, who frees it; NULL: it is empty. */
struct harp_packet *harp_flow_take(struct harp_tcp *tcp);
/* The same as harp_flow_unread and harp_flow_read for taken packets. */
uint32_t harp_packets_unread(const struct harp_packet *packets);
size_t harp_packets_read(struct harp_stack *stack, struct harp_packet **packets, void *data,
                         size_t length, bool peek);
void harp_packets_free(struct harp_stack *stack, struct harp_packet *packets);

/* Gives the undelivered in-order bytes of `old` to `fresh`, whose receive queue must be empty, and
 * frees `old`. Both belong to one stack. `old` sends no segment, and its closed() is not called. */
void harp_flow_replace(struct harp_tcp *fresh, struct harp_tcp *old);
/* Sends a FIN after everything that was pushed. closed() follows when both sides are done. In
 * SYN-SENT it calls closed(0) at once, and tcp is invalid when it returns. */
void harp_flow_close(struct harp_tcp *tcp);
/* Sends a RST and ends the flow. Sends no RST in TIME-WAIT, or if the limit for peers that are no
 * HARP hosts is reached. Does not call closed(), and drops all references to the owner's memory. */
void harp_flow_abort(struct harp_tcp *tcp);
/* As harp_flow_abort, but also ends a connection in TIME-WAIT at once. */
void harp_flow_discard(struct harp_tcp *tcp);
/* No callback is called from now on. The stack finishes the connection alone after harp_flow_close,
 * which may come before or after this call. */
void harp_flow_detach(struct harp_tcp *tcp);
/* The peer is a HARP host. The flow then acknowledges bursts without a timer, except those of
 * harp_flow_share_ack, uses this RTO floor, and keeps its congestion window over idle times. */
void harp_flow_set_harp_peer(struct harp_tcp *tcp, uint32_t rto_min_us);
/* Bounds the time without progress while data is unacknowledged (RFC 5482). 0: no bound. */
void harp_flow_set_timeout(struct harp_tcp *tcp, uint32_t timeout_ms);
/* idle_ms: silence of the peer before the first probe; 0: no keepalive. probes: so many unanswered
 * ones end the connection by closed(-ETIMEDOUT). A bound of harp_flow_set_timeout replaces this
 * number. */
void harp_flow_set_keepalive(struct harp_tcp *tcp, uint32_t idle_ms, uint32_t interval_ms,
                             uint32_t probes);

/* Settings of a connection that must be fixed before its SYN is sent. */
struct harp_flow_syn {
  uint32_t rcvbuf;    /* size of the receive buffer, bytes */
  uint32_t mss;       /* upper bound of the MSS in both directions; 0: the MTU alone bounds it */
  uint8_t rcv_wscale; /* window scale to offer, 0-14 */
  uint8_t tos;        /* IP_TOS of all packets */
};
/* Between harp_flow_connect and the next flush. */
void harp_flow_set_syn(struct harp_tcp *tcp, const struct harp_flow_syn *syn);
/* For all connections whose SYN arrives from now on. */
void harp_flow_set_listener_syn(struct harp_listener *listener, const struct harp_flow_syn *syn);

enum {
  TCP_MSS_FLOOR = 88,    /* lower bound of the MSS (CVE-2019-11479) */
  TCP_DEFAULT_MSS = 536, /* of a peer whose SYN has no MSS option (RFC 9293, 3.7.1) */
};
/* These take effect from the next segment on; harp_flow_ready lets the next flush send it. */
void harp_flow_set_rcvbuf(struct harp_tcp *tcp, uint32_t bytes);
void harp_flow_set_mss(struct harp_tcp *tcp, uint32_t mss); /* at least TCP_MSS_FLOOR */
void harp_flow_set_tos(struct harp_tcp *tcp, uint8_t tos);
/* TCP_CORK: a short segment waits for more data. */
void harp_flow_set_cork(struct harp_tcp *tcp, bool cork);
/* TCP_NODELAY: a short segment does not wait for an acknowledgement. true: data that is already
 * pushed does not wait for more data either, even under TCP_CORK. */
void harp_flow_set_nodelay(struct harp_tcp *tcp, bool nodelay);
/* Selects a congestion control by its name, as returned by harp_congestion_name. Its state begins
 * anew unless it is the selected one already. */
void harp_flow_set_congestion(struct harp_tcp *tcp, const char *name);
/* Returns the name of a congestion control as a constant string. NULL: there is none of this name.
 * name: NULL: the default. */
const char *harp_congestion_name(const char *name);

/* The receiver calls it in deliver, and only if deliver takes all bytes that it was given. It says
 * that the sender does not wait for their acknowledgement. Between HARP hosts, the stack then sends
 * it with a later one, at most 0.5 ms later. more: the sender has more bytes of the same message.
 * If they do not come, it has lost some and waits after all, so the stack acknowledges the next
 * segments at once. */
void harp_flow_share_ack(struct harp_tcp *tcp, bool more);
/* The sender calls it directly before it pushes the next `bytes`. Returns whether the peer may
 * share their acknowledgement. true: the stack takes no RTT sample from these bytes. false: the
 * peer is no HARP host, or less than a quarter of cwnd or SND.WND or less than a segment would stay
 * free, or the last RTT sample is older than 10 ms, or the RTO floor is below 2 ms. */
bool harp_flow_try_share_ack(struct harp_tcp *tcp, uint32_t bytes);
/* Sends a keepalive probe. A live peer must answer it. */
void harp_flow_probe(struct harp_tcp *tcp);
/* Sends an ARP request to the peer's host, at most one a second. Call it when the peer is silent.
 */
void harp_flow_probe_neighbour(struct harp_tcp *tcp);
/* The receive queue and the out-of-order queue are empty: the next byte to deliver has not arrived
 * yet. */
bool harp_flow_rcv_queue_empty(const struct harp_tcp *tcp);
/* Bytes of the Ethernet, IPv4 and TCP headers of the peer's data segments; without Ethernet on an
 * IP link. */
uint16_t harp_flow_header_length(const struct harp_tcp *tcp);
/* The peer's FIN has arrived. */
bool harp_flow_fin_received(const struct harp_tcp *tcp);
/* The peer's FIN has arrived, and every byte before it has been delivered. */
bool harp_flow_at_end(const struct harp_tcp *tcp);
/* Returns the pushed bytes that are not acknowledged; the FIN counts as one. 0 before the
 * connection is established. */
uint32_t harp_flow_unacked(const struct harp_tcp *tcp);
/* Everything pushed is acknowledged, and so is our FIN if it was queued. */
bool harp_flow_drained(const struct harp_tcp *tcp);
struct harp_endpoint harp_flow_peer(const struct harp_tcp *tcp);
uint16_t harp_flow_local_port(const struct harp_tcp *tcp);

struct harp_flow_view {
  uint8_t state;                                             /* enum of <netinet/tcp.h> */
  uint32_t cwnd, ssthresh, send_window, receive_window, mss; /* bytes */
  uint32_t srtt_us, rttvar_us, min_rtt_us, rto_us;
  uint32_t in_flight;   /* bytes (RFC 6675's pipe): without those SACKed or taken for lost */
  uint32_t retransmits; /* retransmissions, up to 64 KiB each */
  /* Bytes pushed and not acknowledged, without the FIN; 0 before the connection is established. */
  uint32_t unacked;
  uint32_t probes; /* unanswered keepalive or window probes */
  /* ns: last acknowledgement of new data or of a closed window, or begin of the data in flight */
  uint64_t last_progress;
  uint64_t last_receive; /* ns: last acceptable segment from the peer */
  uint64_t arp_failed;   /* ns: when the last round of ARP requests to the peer's host failed; 0: it
                            has answered since, or the peer is behind a gateway */
  uint64_t bytes_in, bytes_out;
  /* How long the sender has waited so far: for acknowledgements of data in flight, for the peer's
   * window, and for room in the port's queue. */
  uint32_t ack_wait_ms, window_wait_ms, device_wait_ms;
};
void harp_flow_view(const struct harp_tcp *tcp, struct harp_flow_view *view);
/* Adds the wait that lasts to the stack's counters, so that they do not stand still meanwhile. */
void harp_flow_count_wait(struct harp_tcp *tcp);
/* Fills Linux's struct tcp_info (getsockopt of TCP_INFO). */
void harp_flow_info(const struct harp_tcp *tcp, struct harp_tcp_info *info);

#endif
