/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link carries messages in one direction over one or more TCP flows.
 *
 * Sending: isend publishes a message. Each flow with an open window pulls the next chunk of the
 * oldest message that has chunks left, so a slow flow never delays the others. Instances share only
 * a message's claim word and its count of chunks left.
 * Receiving: a flow copies each chunk to its offset in the posted buffer, unless the port has
 * already placed it there. Data without a posted receive stays in the stack's receive queue.
 *
 *   transport.c      the process: init and finalize, logger, fork, exit
 *   nic.c            a NIC of the process: its start at first use, its ticks, its used ports
 *   devices.c        what NCCL is told about the NICs, and which NIC serves a device
 *   aborts.c         which resets deserve a warning
 *   link.c           requests (isend, irecv, test), failure, close
 *   link_listen.c    listeners, unauthenticated peers, incoming links
 *   link_connect.c   outgoing links
 *   link_flow.c      the life of a flow, from connection to linger
 *   flow_tx.c        a sending flow: pull, acknowledge
 *   flow_copies.c    copies of short messages, until they are acknowledged
 *   flow_rx.c        a receiving flow: deliver
 *   flow_sched.c     which flow of a link takes the next chunk
 *   flow_liveness.c  probes to a silent peer
 *   flow_replace.c   replacement of a dead flow's connection
 *   flow_move.c      a flow's move to another NIC
 *   flow_route.c     which NIC a flow moves to, and when
 *   protocol.c       wire formats
 *   proof.c          the shared key, and its proofs in hello and welcome
 *   early_read.c     which receives the GPU reads before they are complete
 *   crc32c.c         checks of chunk headers and payload
 */
#ifndef HARP_PLUGIN_LINK_H
#define HARP_PLUGIN_LINK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/engine/statfile.h"
#include "harp/stack/flow.h"
#include "plugin/link/aborts.h"
#include "plugin/link/nic.h"
#include "plugin/link/proof.h"
#include "plugin/link/protocol.h"
#include "plugin/link/transport.h"
#include "plugin/net.h"

enum {
  LINK_REQUESTS = 64, /* outstanding requests of a link: twice NCCL's limit */
  LINK_FLOWS = 16,
  LINK_PARTS = 64,
  FLOW_CHUNKS = 128,         /* unacknowledged chunks of a flow */
  FLOW_COPY_MOST = 32 << 10, /* bytes of a message that is copied when it is sent */
  PEER_NAME_SIZE = 32,
  SILENT_PROBES = 2, /* so many unanswered keepalives or window probes: the peer is silent */
};

enum request_state { REQUEST_FREE, REQUEST_POSTED, REQUEST_DONE };

struct net_request {
  _Atomic(uint32_t) state;
  struct net_link *link;
  uint8_t *data;
  size_t size;               /* send: bytes; receive: capacity */
  struct net_region *region; /* the registration of data; may be NULL */
  uint64_t message;          /* number within the link, from 0 */
  /* send: low 32 bits of message << 32 | chunks not yet pulled; receive: see flow_rx.c */
  _Atomic(uint64_t) claim;
  _Atomic(int64_t) left;   /* send: chunks not acknowledged; receive: see flow_rx.c */
  _Atomic(uint64_t) edges; /* receive: see flow_rx.c */
  size_t received;         /* receive: the message's size, once known */
  uint64_t posted_ns;      /* when isend or irecv posted it; harp_clock_ns */
  bool read_early;         /* receive: see early_read.h */
};

/* The part of a link that one instance owns, in a cache line of its own: pollers write to it for
 * each message. */
struct link_instance {
  _Alignas(64) struct harp_post post; /* posted when a message was posted or the link failed */
  struct net_link *link;
  struct nic_instance *at;
  struct harp_instance *instance; /* that of at */
  uint64_t cursor;                /* send: oldest message that may have chunks left */
};

/* A pulled chunk, until all of its bytes are acknowledged. */
struct chunk_out {
  struct chunk chunk;
  uint8_t header[CHUNK_CHECKED_HEADER_SIZE];
  uint8_t trailer[CHUNK_TRAILER_SIZE];
  const uint8_t *payload;      /* in user memory, or a copy */
  struct net_request *request; /* NULL: the payload is a copy, and the send is done */
  uint32_t copied;             /* bytes of the copies' ring that it takes */
  uint32_t left;               /* bytes not acknowledged, header and trailer included */
};

struct copy_ring { /* flow_copies.c */
  uint8_t *memory; /* NULL: nothing was copied yet */
  uint32_t head;   /* where the next copy may begin, bytes */
  uint32_t used;   /* bytes before head that belong to unacknowledged copies */
};

/* How a flow's connection ends. */
enum flow_close {
  FLOW_CLOSE_FIN,   /* all pushed bytes, then FIN; RST if the flow is not idle */
  FLOW_CLOSE_RESET, /* RST */
  FLOW_CLOSE_EXIT,  /* the stack is destroyed next: nothing if the flow is drained, else RST */
};

enum flow_state { FLOW_OPENING, FLOW_HANDSHAKE, FLOW_OPEN, FLOW_CLOSED };

/* A flow's move to another instance or to another address of the peer; see flow_move.c. */
enum move_step {
  MOVE_NONE,
  MOVE_CONNECT,
  MOVE_HANDSHAKE, /* waits for the peer */
  MOVE_RELEASE,
  MOVE_ADOPT,
};

struct flow_move {
  struct harp_post post; /* runs the step */
  struct net_link *link;
  atomic_int step; /* enum move_step */
  uint16_t number;
  uint32_t epoch;              /* of the new connection */
  struct link_instance *to;    /* the new owner */
  struct link_flow *candidate; /* the new owner's: has the new connection; NULL: it is lost */
  struct harp_endpoint peer;   /* sender: the other end of the new connection */
  struct welcome welcome;      /* sender */
  struct hello hello;          /* receiver */
  bool released;
  atomic_bool lost;              /* the new connection is lost; the old owner reads this */
  atomic_uint resets, refusals;  /* sender: failed attempts, by the peer's HARP and its kernel */
  _Atomic(uint32_t) hello_epoch; /* sender: the last attempt that has sent a hello */
};

/* A way to the peer: an instance of one of our NICs, and an end of the peer. */
struct flow_route {
  struct nic_instance *at;
  struct harp_endpoint peer;
};

struct link_flow {
  /* NULL: unauthenticated, another flow's new connection, or lingering after its link was closed */
  struct net_link *link;
  struct net_listener *listener;                 /* until the hello was accepted */
  struct link_flow *next;                        /* of its instance's list */
  struct link_flow *unauth_older, *unauth_newer; /* while listener is set */
  struct transport *transport;
  struct nic_instance *at;            /* the NIC and the instance that own the flow */
  struct harp_instance *instance;     /* that of at */
  struct link_instance *_Atomic part; /* of its link, at that instance; any thread may read it */
  struct harp_tcp *tcp;               /* NULL: no connection */
  uint16_t number;
  uint16_t local_port;         /* reserved for this flow; 0: it uses the listener's */
  uint8_t state;               /* enum flow_state */
  bool fin_in;                 /* the peer's FIN was received, and all bytes before it delivered */
  bool fin_waits;              /* its connection ended after a FIN; inherited bytes come before */
  bool checked;                /* chunks have a checked header and a trailer */
  uint32_t epoch;              /* number of attempts to give it a new connection */
  uint32_t connected_epoch;    /* sender: the attempt that its connection comes from */
  struct link_flow *candidate; /* the flow being opened to replace this one */
  struct link_flow *replaces;  /* the flow that this candidate is to replace */
  struct flow_move *move;      /* the move that this flow was created for */
  struct harp_endpoint peer;   /* sender: the other end of its connection */
  struct flow_route preferred; /* sender: as it was opened */
  unsigned next_route;         /* sender: index of the next route to try; 0: the connection works */
  unsigned idle_ticks;         /* sender: ticks without progress, over all connections */
  unsigned reopened;           /* sender: new connections since the last progress */
  uint64_t idle_acked;         /* sender: acked at the last progress */
  uint64_t tried;              /* ns: when a route was last tried */
  /* ns, running time: begin of its linger, or of what flow_watch_lost or _ended limits; 0: none */
  uint64_t lost;
  uint64_t born;         /* ns, running time of its instance: when created or adopted by it */
  uint64_t probed;       /* ns: when the last liveness probe was sent */
  uint64_t waits_since;  /* ns: the last tick at which the peer was not overdue */
  uint64_t opened;       /* ns, CLOCK_REALTIME: when its connection began */
  int published;         /* entry of the statistics file; -1: none */
  uint64_t message_time; /* ns: sum of the messages in message_times */
  uint32_t message_times[HARP_STAT_TIMES]; /* as in struct harp_stat_flow */

  uint8_t handshake_out[HANDSHAKE_SIZE]; /* the hello or welcome we sent, until acknowledged */
  uint32_t handshake_left;               /* bytes of it that are not acknowledged */
  uint8_t rx_header[HANDSHAKE_SIZE]; /* the part received of a hello, welcome, header or trailer */
  uint32_t rx_header_size;
  struct proof_transcript proof; /* with a shared key */

  /* Sending: a ring of chunks, oldest at chunk_tail; NULL in an accepted flow. */
  struct chunk_out *chunks;
  uint32_t chunk_head, chunk_tail;
  struct copy_ring copies;
  uint64_t acked;             /* bytes of chunks acknowledged, over all epochs */
  _Atomic(uint64_t) held;     /* bytes of chunks that are not acknowledged */
  _Atomic(uint64_t) cost;     /* recent cost, ns per 4 KiB; see flow_sched.c */
  uint64_t sample_since;      /* ns: start of the current cost sample */
  uint64_t sample_bytes;      /* bytes acknowledged in this sample */
  _Atomic(uint64_t) answered; /* ns: last segment from the peer, updated at each tick */

  /* Receiving: the current chunk. */
  uint64_t received_before;    /* bytes of chunks received in earlier epochs */
  struct net_request *request; /* NULL: between chunks */
  struct chunk chunk;
  uint32_t chunk_left;
  bool shares_ack;      /* the bytes of the current segment may be acknowledged later */
  uint8_t *offered;     /* the buffer that flow_rx_buffer gave to the stack last; NULL: none */
  uint32_t crc;         /* of the chunk's payload so far, if the chunk has a trailer */
  uint32_t stride;      /* largest payload delivered at once so far, bytes */
  uint32_t first_chunk; /* bytes of the last message's first chunk; 0: the GPU polls its receive */
  bool steady;          /* the first chunk of the message before had the same length */
  bool stalled;         /* it waits for a posted receive */
  uint64_t stalled_since, stalled_time; /* ns; the connection's earlier waits */
  uint8_t *inherited;                   /* bytes that were received earlier, delivered first */
  size_t inherited_size, inherited_taken;
};

/* The life of a link; enter_state in link.c has the transitions. From LINK_PEER_CLOSED on, requests
 * fail (link_ended, link_error). */
enum link_state {
  LINK_OPENING, /* not every flow has exchanged hello and welcome */
  LINK_OPEN,
  LINK_FAILING,     /* one thread logs the first failure; it then sets error and LINK_FAILED */
  LINK_PEER_CLOSED, /* in order; a request that is posted now fails */
  LINK_FAILED,
};

/* Whether NCCL still calls connect for a link. This is no part of its state: a link may be open, or
 * have failed, long before NCCL calls connect again. */
enum connect_state {
  CONNECT_NONE,      /* connect has returned the link, or it was accepted */
  CONNECT_PENDING,   /* NCCL is to call connect again */
  CONNECT_ABANDONED, /* NCCL does not call connect again; reap_abandoned frees the link */
};

struct net_link {
  struct transport *transport;
  struct net_link *next; /* of the transport's list, or the listener's queue */
  bool sends;
  atomic_int state;   /* enum link_state */
  int error;          /* negative errno; written before LINK_FAILED, and read only after it */
  atomic_int connect; /* enum connect_state */
  atomic_bool called; /* connect was called for it since the last tick, which resets this */
  unsigned calls;     /* connect calls that use it now; under transport->lock */
  uint64_t called_at; /* ns, running time of flow 0's instance: last tick that saw a call */
  uint64_t id;
  struct harp_endpoint peer;
  char peer_name[PEER_NAME_SIZE];
  _Atomic(uint16_t) peer_mtu; /* from the hello or welcome; instances write it concurrently */
  bool peer_kernel_address;   /* the peer host's kernel answers ARP, even for a stopped process */
  uint16_t flow_count;
  bool striped;                  /* spread over the NICs of the sending process */
  _Atomic(uint16_t) flows_begun; /* send: flows that connect has opened so far */
  uint32_t chunk_size;           /* send: bytes of a full chunk */
  struct handle handle;          /* send: the peer's, to reopen flows */
  struct net_listener *listener; /* receive: stays open as long as the link, to reopen flows */
  _Atomic(uint16_t) flows_open;  /* flows that have exchanged hello and welcome; never falls */
  _Atomic(uint16_t) flows_ended; /* flows on which the peer's FIN was received */
  struct net_region *regions;    /* memory registered on it */
  /* link_detach has begun: instances no longer read each other's flows. This is no state: a link
   * closes in any state, keeps its error, and may still fail until its flows have ended. */
  atomic_bool closing;
  _Atomic(bool) stalled;                       /* receive: a flow waits for a posted receive */
  struct link_flow *_Atomic flows[LINK_FLOWS]; /* each belongs to its instance */
  struct transport_nic *nic;                   /* the NIC on which it was opened */
  _Atomic(unsigned) part_count; /* parts are only added: one for each instance that serves it */
  struct link_instance parts[LINK_PARTS];
  struct flow_move moves[LINK_FLOWS]; /* by flow */
  struct nic_list peer_nics;          /* send: the peer's; read through link_peer_nics */
  atomic_bool peer_nics_known;        /* from the welcome of flow 0 */
  struct net_link *next_receiving;    /* receive: in the transport's list */
  _Atomic(uint64_t) doubted;          /* ns: when one of its flows was last suspected dead */

  /* Written by the application's thread, read by pollers. */
  _Alignas(64) _Atomic(uint64_t) posted; /* messages posted since the link was created */
  _Alignas(64) struct net_request requests[LINK_REQUESTS];
};

/* Lives until NCCL has closed it and all links that it accepted are closed. */
struct net_listener {
  struct transport *transport;
  struct transport_nic *nic;
  bool shared; /* a NIC's: it accepts flows of all links of the process, and no new link */
  atomic_uint users;
  atomic_bool closed; /* no new links */
  uint8_t token[TOKEN_SIZE];
  uint16_t ports[HARP_ENGINE_INSTANCES];
  struct harp_listener *stack_listeners[HARP_ENGINE_INSTANCES];
  pthread_mutex_t lock;      /* protects incoming against pollers and service threads */
  struct net_link *incoming; /* links not yet accepted, oldest first */
};

/* --- link.c --- */

/* Creates a link without flows on a running NIC, with a part at each of the NIC's instances. The
 * caller owns it until link_destroy. NULL: no memory. */
struct net_link *link_create(struct transport_nic *nic, bool sends, uint64_t id,
                             struct harp_endpoint peer, uint16_t flow_count);
/* Returns the part of the link at this instance, and adds it if there is none. NULL: the link has
 * LINK_PARTS parts already. Any thread, also under a poll lock. */
struct link_instance *link_part(struct net_link *link, struct nic_instance *at);
/* Send: the peer's NICs; an empty list until the welcome of flow 0. Any thread. */
const struct nic_list *link_peer_nics(const struct net_link *link);
/* Receive: lets hellos on any NIC find the link, from now until link_detach. Under a poll lock. */
void link_receive_on_all(struct net_link *link);
/* Finds the receiving link that a hello with a valid token names. Returns the link's part at this
 * instance, and adds it if there is none. NULL: no such link, or it has too many parts. The link
 * stays valid for the current poll of this instance. */
struct link_instance *link_named(struct nic_instance *at, const struct hello *hello);
/* The configuration of the NIC on which the link was opened. Any thread. */
static inline const struct harp_config *link_config(const struct net_link *link)
{
  return &link->nic->engine->config;
}
/* Returns the negative errno with which requests on the link fail; -ESHUTDOWN: the peer has closed
 * the link. 0: requests do not fail. Any thread. */
static inline int link_error(const struct net_link *link)
{
  int state = atomic_load(&link->state);
  return state == LINK_FAILED ? link->error : state == LINK_PEER_CLOSED ? -ESHUTDOWN : 0;
}
/* The link has failed, or the peer has closed it. Any thread. */
static inline bool link_ended(const struct net_link *link)
{
  return atomic_load(&link->state) >= LINK_PEER_CLOSED;
}
/* Every flow has been open. It stays true when the link ends. Any thread. */
static inline bool link_was_open(const struct net_link *link)
{
  return atomic_load(&link->flows_open) == link->flow_count;
}
/* One more flow of the link has exchanged hello and welcome. Under the flow's poll lock. */
void link_flow_opened(struct net_link *link);
/* Fails the link with a negative errno and logs why. Only the first failure counts. Under a poll
 * lock. */
__attribute__((format(printf, 3, 4))) void link_fail(struct net_link *link, int error,
                                                     const char *format, ...);
/* The peer has closed a flow and no request is outstanding. This is no failure until the next
 * request is posted; that request fails. Under a poll lock. */
void link_peer_closed(struct net_link *link);
/* Ends the link's flows on all instances: with FIN if no request is outstanding and the link has
 * not failed, else with RST. User memory is not touched afterwards. false: a worker does not
 * answer and may still use the link. Service thread. */
bool link_detach(struct net_link *link);
/* Detaches the link, and frees it if no worker still uses it. Service thread. */
void link_destroy(struct net_link *link);
/* Called before memory that was registered on this link is deregistered. The whole link ends, and
 * user memory is not touched afterwards, if it has failed or an outstanding request uses the
 * region: NCCL frees the memory of a failed communicator before it closes its comms. Service
 * thread. */
void link_revoke_region(struct net_link *link, const struct net_region *region);
/* Polls the instances of the link, where that helps (harp_instance_progress). */
void link_progress(struct net_link *link);
/* Number of chunks of a message of size bytes; an empty message has one. */
static inline uint64_t link_chunks(const struct net_link *link, size_t size)
{
  return size == 0 ? 1 : (size + link->chunk_size - 1) / link->chunk_size;
}
/* No request is outstanding. */
bool link_idle(const struct net_link *link);

/* --- link_connect.c --- */

/* At every tick: fails a link that does not open within timeout_ms (if it is spread and receives,
 * four times that), or for which NCCL has stopped calling connect. Under a poll lock. */
void link_watch_opening(struct link_flow *flow);
/* The peer's welcome is complete in flow->rx_header. false: the flow was freed. Under its poll
 * lock. */
bool connector_input(struct link_flow *flow);

/* --- plugin/registration.c --- */

/* The registered bytes. */
size_t region_size(const struct net_region *region);
/* Releases all regions that NCCL has not deregistered. No request refers to them any more. */
void link_release_regions(struct net_link *link);

/* --- link_flow.c; everything under the flow's poll lock --- */

/* Records an event of the flow in its instance's trace. */
static inline void flow_trace(struct link_flow *flow, enum harp_trace_event event, uint32_t a,
                              uint32_t b)
{
  uint16_t port = flow->local_port ? flow->local_port
                  : flow->tcp      ? harp_flow_local_port(flow->tcp)
                                   : HARP_TRACE_NO_FLOW;
  harp_instance_trace(flow->instance, port, event, a, b);
}

/* Counts a message that the flow has just completed in its histogram. The poll may have begun
 * before the message was posted. */
static inline void flow_count_time(struct link_flow *flow, const struct net_request *request)
{
  uint64_t now = harp_instance_now(flow->instance);
  uint64_t time = now > request->posted_ns ? now - request->posted_ns : 0;
  flow->message_time += time;
  flow->message_times[harp_stat_bucket(time)]++;
}

/* Size of a chunk header on this flow, bytes. */
static inline uint32_t flow_header_size(const struct link_flow *flow)
{
  return flow->checked ? CHUNK_CHECKED_HEADER_SIZE : CHUNK_HEADER_SIZE;
}

/* Creates a flow without a connection. This instance owns it until flow_free. NULL: no memory. */
struct link_flow *flow_create(struct nic_instance *at);
/* The configuration of the NIC that the flow uses. */
static inline const struct harp_config *flow_config(const struct link_flow *flow)
{
  return &flow->at->nic->engine->config;
}
/* Opens a sending flow's connection. 0, or a negative errno. */
int flow_connect(struct link_flow *flow, struct harp_endpoint peer);
/* Gives a listener's new connection to a receiving flow, which then waits for the hello. */
void flow_accept(struct link_flow *flow, struct harp_tcp *tcp);
/* Takes the connection away from the flow `from`, and gives it to `flow`. */
void flow_move_connection(struct link_flow *flow, struct link_flow *from);
/* Makes the flow the one with this number of the link. */
void flow_set_link(struct link_flow *flow, struct net_link *link, uint16_t number);
/* Frees the bytes that an earlier connection has received. */
void flow_drop_inherited(struct link_flow *flow);
/* Takes the flow and its link away from its instance. Its connection is reset, and a sending flow
 * keeps its unacknowledged chunks. */
void flow_leave_instance(struct link_flow *flow);
/* Gives a flow that has left its instance to the instance of this part. */
void flow_enter_instance(struct link_flow *flow, struct link_instance *part);
/* Writes the hello for a flow's connection. 0, or -EIO: no random challenge. */
int flow_write_hello(struct link_flow *flow, const struct net_link *link, uint16_t number);
/* Hello and welcome were exchanged: the peer is a HARP host. */
void flow_open(struct link_flow *flow);
/* As flow_open, for a flow that has got a new connection. */
void flow_reopen(struct link_flow *flow);
/* Takes the flow from its link and closes its connection. Frees the flow, at once or when a
 * lingering connection ends. */
void flow_close_free(struct link_flow *flow, enum flow_close how);
/* Closes a connection that waits for its welcome, with FIN. Keepalives end it if the peer has
 * forgotten it meanwhile. */
void flow_end_attempt(struct link_flow *candidate);
/* Frees a flow that has no connection. */
void flow_free(struct link_flow *flow);
/* Resets the connection. The flow stays with its link until the link is closed. */
void flow_reset(struct link_flow *flow);
/* Sends the hello or welcome in flow->handshake_out; size in bytes. */
void flow_send_handshake(struct link_flow *flow, uint32_t size);
/* Writes the flow's values to its entry in the statistics file, if it has one. */
void flow_publish(struct link_flow *flow);
/* Handles the peer's FIN, once all bytes before it were delivered. */
void flow_readable(void *user, struct harp_tcp *tcp);
/* Whether no data of ours is outstanding: all bytes and the FIN are acknowledged, or the peer has
 * closed and acknowledged all bytes. */
bool flow_drained(const struct link_flow *flow);

/* --- flow_tx.c --- */

/* Callbacks of a sending flow; user: the flow (pull and acked of struct harp_flow_ops). */
void flow_pull(void *user, struct harp_tcp *tcp, uint32_t room);
void flow_acked(void *user, struct harp_tcp *tcp, uint32_t bytes);

/* Counts bytes of chunks as acknowledged, oldest first. */
void flow_count_acked(struct link_flow *flow, uint64_t bytes);
/* Pushes all unacknowledged bytes again, on a new connection. false: the stack has no room, so the
 * stream has a hole. */
bool flow_push_again(struct link_flow *flow);

/* Whether bytes of chunks are not acknowledged. They may belong to sends that are done. */
static inline bool flow_owes(const struct link_flow *flow)
{
  return flow->chunk_head != flow->chunk_tail;
}

/* --- flow_copies.c --- */

/* Copies a message of length bytes. The copy stays until flow_copy_acked. *taken: bytes of the ring
 * that the copy takes. NULL: the message is too long, or there is no room. */
const uint8_t *flow_copy(struct link_flow *flow, const uint8_t *data, uint32_t length,
                         uint32_t *taken);
/* The oldest copy is acknowledged. */
void flow_copy_acked(struct link_flow *flow, uint32_t taken);
/* The connection no longer refers to any copy, and the flow is freed next. */
void flow_copies_free(struct link_flow *flow);

/* --- flow_sched.c --- */

/* Whether this flow takes the next chunk. bytes: the chunk's size. false: another flow should take
 * the chunk, and was told so. */
bool flow_takes(struct link_flow *flow, uint32_t bytes);
/* The flow has pulled bytes of chunks, or bytes were acknowledged; `waited`: by a shared ACK. */
void flow_holds_more(struct link_flow *flow, uint32_t bytes);
void flow_holds_less(struct link_flow *flow, uint32_t bytes, bool waited);
/* The flow has got a connection, or has lost it. */
void flow_sched_begin(struct link_flow *flow);
void flow_sched_end(struct link_flow *flow);
/* At every tick: makes an idle flow cheaper, so that it is tried again. */
void flow_sched_tick(struct link_flow *flow);

/* --- flow_liveness.c --- */

/* At every tick: probes a silent peer while requests are outstanding or bytes are unacknowledged.
 * now: ns. */
void flow_watch_peer(struct link_flow *flow, uint64_t now);

/* --- flow_rx.c --- */

/* Callbacks of a flow; user: the flow (deliver and rx_buffer of struct harp_flow_ops). */
size_t flow_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);
uint8_t *flow_rx_buffer(void *user, struct harp_tcp *tcp, uint32_t length);
/* The initial claim word of a receive that is posted for a message. */
uint64_t receive_unclaimed(uint64_t message);
/* A receive was posted: delivery continues if the flow waits for one. */
void flow_resume(struct link_flow *flow);

/* Delivers the bytes that an earlier connection has received. */
void flow_resume_inherited(struct link_flow *flow);
/* Adds the wait for a receive that lasts to stalled_time and to the counter. */
void flow_count_wait(struct link_flow *flow);

/* --- flow_replace.c --- */

/* At every tick: replaces the connection of a dead flow, and watches the replacement. now: ns. */
void flow_watch(struct link_flow *flow, uint64_t now);
/* Whether a sending flow's connection is dead. now: ns. */
bool flow_is_dead(const struct link_flow *flow, uint64_t now);
/* Sender: the candidate has received its welcome. Its connection moves to the flow that it
 * replaces, and the candidate is freed. */
void flow_candidate_welcomed(struct link_flow *candidate, const struct welcome *welcome);
/* Sender: the flow has a new connection, and continues where the welcome says. */
void flow_continue_sending(struct link_flow *flow, const struct welcome *welcome);
/* Moves the candidate's connection to old and frees the candidate. Returns the bytes that the old
 * connection has received, hello included. */
uint64_t flow_replace_connection(struct link_flow *old, struct link_flow *candidate);

/* --- flow_move.c --- */

/* Sender: begins to move the flow to the instance `to`, with a new connection to `peer`. false: a
 * move is under way, or the link has too many parts. */
bool flow_move_out(struct link_flow *flow, struct nic_instance *to, struct harp_endpoint peer);
/* Sender: the new connection has received a welcome. false: it has received one before. */
bool flow_move_welcomed(struct link_flow *candidate, const struct welcome *welcome);
/* Receiver: begins to move the flow that its hello names. false: a move is under way. */
bool flow_move_in(struct link_flow *candidate, struct link_instance *to, const struct hello *hello);
/* Sender: the peer has reset (error: -ECONNRESET) or refused (-ECONNREFUSED) a new connection. */
void flow_move_refused(struct flow_move *move, int error);
/* Sender: an attempt has succeeded, or is not needed any more. */
void flow_move_accepted(struct flow_move *move);
/* The candidate of a move is being freed. */
void flow_move_lost(struct link_flow *candidate);
/* Whether a move of the flow has begun and has not ended. Its owner asks. */
static inline bool flow_is_moving(const struct link_flow *flow)
{
  return flow->link && atomic_load(&flow->link->moves[flow->number].step) != MOVE_NONE;
}
/* At every tick: ends an attempt that takes too long. */
void flow_move_watch(struct link_flow *candidate);
/* Whether an attempt to open a new connection, by a move or on the same route, takes too long. */
bool flow_attempt_is_over(const struct link_flow *candidate);
/* Receiver: counts and copies the bytes that the connection has received, before it ends. false: no
 * memory. */
bool flow_keep_received(struct link_flow *flow);
/* The link is being detached from this instance, or has failed. Ends its moves to this instance. */
void flow_moves_end(struct net_link *link, const struct nic_instance *at, enum flow_close how);

/* --- flow_route.c --- */

/* At every tick: moves a sending flow whose NIC or whose peer's NIC fails, and moves it back when
 * they work again. dead: its connection is dead. now: ns. true: the flow moves, so flow_replace.c
 * leaves it alone. */
bool flow_watch_route(struct link_flow *flow, bool dead, uint64_t now);
/* The route of a flow of a link that is spread over NICs, by its number. first: the open flow 0.
 * Each pair of NICs of the same device is one route. Any thread. */
struct flow_route flow_stripe(const struct link_flow *first, unsigned number);
/* At every tick: fails the link if the flow has had no connection for too long. */
void flow_watch_lost(struct link_flow *flow);
/* At every tick: fails the link if the flow has ended and no other one brings what is expected. */
void flow_watch_ended(struct link_flow *flow);
static inline bool flow_route_same(const struct flow_route *a, const struct flow_route *b)
{
  return a->at == b->at && a->peer.address == b->peer.address && a->peer.port == b->peer.port;
}
/* Whether the link has more than one route to the peer. */
bool link_has_routes(const struct net_link *link);

/* --- link_listen.c; under the poll lock, unless a comment says another thread --- */

/* The peer's hello is complete in flow->rx_header. false: the flow was freed. */
bool listener_input(struct link_flow *flow);
/* Receiver: the flow has a new connection; sends the welcome for its hello. */
void listener_continue(struct link_flow *flow, const struct hello *hello);
/* The bytes of hellos that a flow's connection has received. */
uint32_t flow_hello_bytes(const struct link_flow *flow);
/* Removes the flow from the unauthenticated peers. */
void listener_remove_unauthenticated(struct link_flow *flow);
/* Opens the listener of a NIC's shared port. NULL: no memory. Service thread. */
struct net_listener *listener_open_shared(struct transport_nic *nic);
/* Drops a reference; the last one destroys the listener. Service thread. */
void listener_put(struct net_listener *listener);

#endif
