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
 *   transport.c      the process: engine, logger, fork, exit
 *   contexts.c       open communicators
 *   registration.c   memory that is registered on a link
 *   aborts.c         which resets deserve a warning
 *   link.c           requests (isend, irecv, test), failure, close
 *   link_listen.c    listeners, unauthenticated peers, incoming links
 *   link_connect.c   outgoing links
 *   link_flow.c      the life of a flow, from connection to linger
 *   flow_tx.c        a sending flow: pull, acknowledge
 *   flow_rx.c        a receiving flow: deliver
 *   flow_sched.c     which flow of a link takes the next chunk
 *   flow_liveness.c  probes to a silent peer
 *   flow_replace.c   replacement of a dead flow's connection
 *   protocol.c       wire formats
 *   proof.c          the shared key, and its proofs in hello and welcome
 */
#ifndef HARP_PLUGIN_LINK_H
#define HARP_PLUGIN_LINK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/engine/engine.h"
#include "harp/stack/flow.h"
#include "plugin/link/aborts.h"
#include "plugin/link/proof.h"
#include "plugin/link/protocol.h"
#include "plugin/net.h"

enum {
  LINK_REQUESTS = 64, /* outstanding requests of a link: twice NCCL's limit */
  LINK_FLOWS = 16,
  FLOW_CHUNKS = 128, /* unacknowledged chunks of a flow */
  LINK_CLOSE_MS = 1000,
  PEER_NAME_SIZE = 32,
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
};

/* The part of a link that one instance owns. */
struct link_instance {
  struct harp_post post; /* posted when a message was posted or the link failed */
  struct net_link *link;
  struct harp_instance *instance;
  uint64_t cursor; /* send: oldest message that may have chunks left */
};

/* A pulled chunk, until all of its bytes are acknowledged. */
struct chunk_out {
  uint8_t header[CHUNK_CHECKED_HEADER_SIZE];
  uint8_t trailer[CHUNK_TRAILER_SIZE];
  struct net_request *request;
  uint32_t left; /* bytes not acknowledged, header and trailer included */
};

enum flow_state { FLOW_OPENING, FLOW_GREETING, FLOW_OPEN, FLOW_OVER };

struct link_flow {
  struct net_link *link;                         /* NULL: the link is closed and the flow lingers */
  struct net_listener *listener;                 /* until the hello was accepted */
  struct link_flow *next;                        /* of its instance's list */
  struct link_flow *unauth_older, *unauth_newer; /* while listener is set */
  struct transport *transport;
  struct harp_instance *instance;
  struct harp_tcp *tcp; /* NULL: no connection */
  uint16_t number;
  uint16_t local_port;         /* reserved for this flow; 0: it uses the listener's */
  uint8_t state;               /* enum flow_state */
  bool fin_in;                 /* the peer's FIN was received */
  bool checked;                /* chunks have a checked header and a trailer */
  uint32_t epoch;              /* number of attempts to replace its connection */
  struct link_flow *candidate; /* the flow being opened to replace this one */
  struct link_flow *replaces;  /* the flow that this candidate is to replace */
  uint64_t born;               /* ns, running time of its instance: when it was created */
  uint64_t probed;             /* ns: when the last liveness probe was sent */
  uint64_t waits_since;        /* ns: the last tick at which the peer was not overdue */
  uint64_t opened;             /* ns, CLOCK_REALTIME: when it was created */
  int published;               /* entry of the statistics file; -1: none */

  uint8_t greeting[HELLO_SIZE];  /* the hello or welcome we sent, until acknowledged */
  uint32_t greeting_left;        /* bytes of it that are not acknowledged */
  uint8_t rx_header[HELLO_SIZE]; /* the part received of a hello, welcome, header or trailer */
  uint32_t rx_header_size;
  struct proof_transcript proof; /* with a shared key */

  /* Sending: a ring of chunks, oldest at chunk_tail; NULL in an accepted flow. */
  struct chunk_out *chunks;
  uint32_t chunk_head, chunk_tail;
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
  uint8_t *offered; /* the buffer that flow_rx_buffer gave to the stack last; NULL: none */
  uint32_t crc;     /* of the chunk's payload so far, if the chunk has a trailer */
  uint32_t stride;  /* largest payload delivered at once so far, bytes */
  bool stalled;     /* it waits for a posted receive */
};

struct net_link {
  struct transport *transport;
  struct net_link *next; /* of the transport's list, or the listener's queue */
  bool sends;
  atomic_bool connecting; /* connect has not returned it yet */
  atomic_bool called;     /* connect was called for it since the last tick */
  atomic_bool abandoned;  /* NCCL no longer calls connect for it; reap_abandoned frees it */
  unsigned calls;         /* connect calls that use it now; under transport->lock */
  uint64_t called_at;     /* ns, running time of flow 0's instance: last tick that saw a call */
  uint64_t id;
  struct harp_endpoint peer;
  char peer_name[PEER_NAME_SIZE];
  _Atomic(uint16_t) peer_mtu; /* from the hello or welcome; instances write it concurrently */
  bool peer_kernel_address;   /* the peer host's kernel answers ARP, even for a stopped process */
  uint16_t flow_count;
  uint32_t chunk_size;           /* send: bytes of a full chunk */
  struct handle handle;          /* send: the peer's, to reopen flows */
  struct net_listener *listener; /* receive: stays open as long as the link, to reopen flows */
  _Atomic(uint16_t) flows_open;
  _Atomic(uint16_t) flows_ended; /* flows on which the peer's FIN was received */
  struct net_region *regions;    /* memory registered on it */
  _Atomic(bool) closing;
  _Atomic(bool) stalled;                       /* receive: a flow waits for a posted receive */
  struct link_flow *_Atomic flows[LINK_FLOWS]; /* each belongs to its instance */
  unsigned part_count;
  struct link_instance parts[HARP_ENGINE_INSTANCES];
  atomic_int error;          /* negative errno; 0: none */
  atomic_bool failing;       /* set by the first failure, before it sets error */
  _Atomic(uint64_t) doubted; /* ns: when one of its flows was last suspected dead */

  /* Written by the application's thread, read by pollers. */
  _Alignas(64) _Atomic(uint64_t) posted; /* messages posted since the link was created */
  _Alignas(64) struct net_request requests[LINK_REQUESTS];
};

/* Lives until NCCL has closed it and all links that it accepted are closed. */
struct net_listener {
  struct transport *transport;
  atomic_uint users;
  atomic_bool closed; /* no new links */
  uint8_t token[TOKEN_SIZE];
  uint16_t ports[HARP_ENGINE_INSTANCES];
  struct harp_listener *stack_listeners[HARP_ENGINE_INSTANCES];
  pthread_mutex_t lock;      /* protects incoming against pollers and service threads */
  struct net_link *incoming; /* links not yet accepted, oldest first */
};

/* --- transport.c --- */

struct transport {
  struct harp_engine *engine;
  pthread_mutex_t lock;    /* links and their regions; never taken under a poll lock */
  atomic_int trace_wanted; /* enum trace_request; a trace is written once */
  char trace_reason[200];
  bool checksum;        /* HARP_CHECKSUM=1: chunks that we send carry a trailer */
  struct proof_key key; /* HARP_KEY_FILE */
  struct aborts aborts;
  atomic_bool warned_of_mtu; /* the MTU warning was logged; it is logged once per process */
  struct net_link *links;    /* open, or being connected (link->connecting) */
  /* One per instance, under its poll lock. */
  struct transport_instance {
    struct harp_ticker ticker;
    struct transport *transport;
    struct link_flow *flows; /* all flows; those without link and listener linger */
    struct link_flow *unauth_oldest, *unauth_newest; /* connected, no hello yet */
    unsigned unauthenticated;
    struct retired_port *retired;
  } parts[HARP_ENGINE_INSTANCES];
  atomic_bool published[HARP_STAT_FLOWS]; /* entries in use */
};

/* The open transport, or NULL with *error set (-ENODEV: no init; -EPERM: in a forked child). */
struct transport *transport_get(int *error);
/* 0, or -EPERM in a forked child: HARP's state must not be touched there. */
int transport_forked(void);
/* Writes queued log lines with NCCL's logger, and starts writing the trace that the first failure
 * requested. Thread: one of NCCL's. */
void transport_drain_log(void);
/* Requests that the trace is written, with this reason. Only the first request counts. Any
 * thread. */
void transport_request_trace(struct transport *transport, const char *reason);
/* Releases a local port after a delay. Late segments of the peer must meet HARP's connection in
 * TIME-WAIT, not the kernel. Under the poll lock. */
void transport_retire_port(struct transport *transport, struct harp_instance *instance,
                           uint16_t port);
void transport_add_link(struct transport *transport, struct net_link *link);
void transport_remove_link(struct transport *transport, struct net_link *link);

/* --- link.c --- */

struct net_link *link_create(struct transport *transport, bool sends, uint64_t id,
                             struct harp_endpoint peer, uint16_t flow_count);
/* Fails the link with a negative errno and logs why. Only the first failure counts. Under a poll
 * lock. */
__attribute__((format(printf, 3, 4))) void link_fail(struct net_link *link, int error,
                                                     const char *format, ...);
/* The peer has closed a flow and no request is outstanding. The next posted request fails; until
 * then this is no failure. Under a poll lock. */
void link_over(struct net_link *link);
/* Ends the link's flows on all instances: with FIN if no request is outstanding and the link has
 * not failed, else with RST.
 * User memory is not touched afterwards. false: a worker does not answer and may still use the
 * link. Service thread. */
bool link_detach(struct net_link *link);
/* Detaches the link, and frees it if no worker still uses it. Service thread. */
void link_destroy(struct net_link *link);
/* Called before memory that was registered on this link is deregistered. If the link has failed or
 * an outstanding request uses the region, the whole link ends and user memory is not touched
 * afterwards: NCCL frees the memory of a failed communicator before it closes its comms. Service
 * thread. */
void link_lose_memory(struct net_link *link, const struct net_region *region);
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

/* At every tick: fails a link that does not open within timeout_ms, or for which NCCL has stopped
 * calling connect. Under a poll lock. */
void link_watch_opening(struct link_flow *flow);

/* --- registration.c --- */

/* Releases all regions that NCCL has not deregistered. No request refers to them any more. */
void link_give_memory_back(struct net_link *link);

/* --- link_flow.c; everything under the flow's poll lock --- */

/* Records an event of the flow in its instance's trace. */
static inline void flow_trace(struct link_flow *flow, enum harp_trace_event event, uint32_t a,
                              uint32_t b)
{
  uint16_t port = flow->local_port ? flow->local_port
                  : flow->tcp      ? harp_flow_local_port(flow->tcp)
                                   : 0xffff;
  harp_trace(&flow->instance->trace, flow->instance->now, port, event, a, b);
}

/* Size of a chunk header on this flow, bytes. */
static inline uint32_t flow_header_size(const struct link_flow *flow)
{
  return flow->checked ? CHUNK_CHECKED_HEADER_SIZE : CHUNK_HEADER_SIZE;
}

struct link_flow *flow_create(struct transport *transport, struct harp_instance *instance);
/* Opens a sending flow's connection to the peer's instance that serves it. 0, or a negative
 * errno. */
int flow_connect(struct link_flow *flow, const struct net_link *link);
void flow_adopt(struct link_flow *flow, struct harp_tcp *tcp);
/* Moves the connection of from to flow. */
void flow_take_connection(struct link_flow *flow, struct link_flow *from);
void flow_set_link(struct link_flow *flow, struct net_link *link, uint16_t number);
/* Hello and welcome were exchanged: the peer is a HARP host. */
void flow_open(struct link_flow *flow);
/* The same for a flow that gets a new connection. */
void flow_reopen(struct link_flow *flow);
/* Detaches the flow from its link. gently: all pushed bytes are sent, then FIN, and the flow
 * lingers until the FIN is acknowledged. Otherwise, or if the flow is not idle, it sends RST. */
void flow_end(struct link_flow *flow, bool gently);
/* Frees a flow that has no connection. */
void flow_free(struct link_flow *flow);
/* Frees the flow before its stack is destroyed. */
void flow_leave(struct link_flow *flow);
/* Resets the connection. The flow stays with its link until the link is closed. */
void flow_kill(struct link_flow *flow);
/* Sends the hello or welcome in flow->greeting; size in bytes. */
void flow_start_hello(struct link_flow *flow, uint32_t size);
void flow_publish(struct link_flow *flow);
/* Whether no data of ours is outstanding: all bytes and the FIN are acknowledged, or the peer has
 * closed and acknowledged all bytes. */
bool flow_drained(const struct link_flow *flow);

/* --- flow_tx.c --- */

void flow_pull(void *user, struct harp_tcp *tcp, uint32_t room);
void flow_acked(void *user, struct harp_tcp *tcp, uint32_t bytes);

/* --- flow_sched.c --- */

/* Whether this flow takes the next chunk. bytes: the chunk's size. false: another flow was told to
 * take it. */
bool flow_takes(struct link_flow *flow, uint32_t bytes);
void flow_holds_more(struct link_flow *flow, uint32_t bytes);
void flow_holds_less(struct link_flow *flow, uint32_t bytes);
/* The flow has got a connection, or has lost it. */
void flow_sched_begin(struct link_flow *flow);
void flow_sched_end(struct link_flow *flow);
void flow_sched_tick(struct link_flow *flow);

/* --- flow_liveness.c --- */

/* At every tick: probes a silent peer while requests are outstanding. now: ns. */
void flow_watch_peer(struct link_flow *flow, uint64_t now);

/* --- flow_rx.c --- */

size_t flow_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);
uint8_t *flow_rx_buffer(void *user, struct harp_tcp *tcp, uint32_t length);
/* The initial claim word of a receive that is posted for a message. */
uint64_t receive_unclaimed(uint64_t message);
/* A receive was posted: delivery continues if the flow waits for one. */
void flow_resume(struct link_flow *flow);

/* Counts bytes of chunks as acknowledged, oldest first. */
void flow_skip(struct link_flow *flow, uint64_t bytes);
/* Pushes all unacknowledged bytes again, on a new connection. false: the stack has no room, so the
 * stream has a hole. */
bool flow_push_again(struct link_flow *flow);

/* --- flow_replace.c --- */

/* At every tick: replaces the connection of a dead flow, and watches the replacement. now: ns. */
void flow_watch(struct link_flow *flow, uint64_t now);
/* Whether a sending flow's connection is dead. now: ns. */
bool flow_is_dead(const struct link_flow *flow, uint64_t now);
/* Sender: the candidate has received its welcome. Its connection moves to the flow that it
 * replaces, and the candidate is freed. */
void flow_candidate_welcomed(struct link_flow *candidate, const struct welcome *welcome);
/* Receiver: the flow of this instance that a hello names; NULL: none. */
struct link_flow *flow_named(struct link_flow *fresh, const struct hello *hello);
/* Moves fresh's connection to old and frees fresh. Returns the bytes that the old connection has
 * received, hello included. */
uint64_t flow_transplant(struct link_flow *old, struct link_flow *fresh);
/* Writes the hello for a flow's connection. 0, or -EIO: no random challenge. */
int flow_write_hello(struct link_flow *flow, const struct net_link *link, uint16_t number);

/* --- The peer's hello or welcome is complete in flow->rx_header; false: the flow was freed --- */

bool listener_input(struct link_flow *flow);  /* link_listen.c */
bool connector_input(struct link_flow *flow); /* link_connect.c */

/* link_listen.c: removes the flow from the unauthenticated peers. Under the poll lock. */
void listener_forget(struct link_flow *flow);

/* link_listen.c: drops a reference; the last one destroys the listener. Service thread. */
void listener_put(struct net_listener *listener);

#endif
