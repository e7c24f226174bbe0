/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link carries messages one way over one or more TCP flows.
 *
 * Sending: isend publishes a message; every flow of the link, whenever its
 * window is open, pulls the next chunk of the oldest message that has any
 * left, so a slow flow never holds the others up. The claim word of a message
 * is all that instances share.
 * Receiving: chunks are copied straight to their place in the posted buffer
 * (or were placed there by the port); what comes before its receive is posted
 * waits in the stack.
 *
 *   transport.c    the process: engine, logger, fork, exit
 *   contexts.c     the communicators that are open
 *   aborts.c       which resets are news
 *   link_listen.c       listeners, unauthenticated peers, links that come in
 *   link_connect.c      links that go out
 *   link.c         requests: isend, irecv, test; failure; close
 *   registration.c memory that is registered on a link
 *   link_flow.c         a flow's life, from connection to linger
 *   flow_tx.c     a flow that sends: pull, acknowledge
 *   flow_rx.c      a flow that receives: deliver
 *   flow_sched.c   which flow of a link takes the next chunk
 *   flow_liveness.c a silent peer is asked for a sign of life
 *   flow_replace.c a dead flow's connection is replaced
 *   protocol.c     bytes on the wire
 *   proof.c        a shared key, and proofs of it in greetings
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
  LINK_REQUESTS = 64, /* outstanding on one link: twice what NCCL asks for */
  LINK_FLOWS = 16,
  FLOW_CHUNKS = 128, /* chunks of one flow that are not acknowledged yet */
  LINK_CLOSE_MS = 1000,
  PEER_NAME_SIZE = 32,
};

enum request_state { REQUEST_FREE, REQUEST_POSTED, REQUEST_DONE };

struct net_request {
  _Atomic(uint32_t) state;
  struct net_link *link;
  uint8_t *data;
  size_t size;               /* send: bytes; receive: capacity */
  struct net_region *region; /* what its memory was registered as; may be NULL */
  uint64_t message;          /* number within the link, from 0 */
  /* send: low 32 bits of message << 32 | chunks not yet pulled; receive: see flow_rx.c */
  _Atomic(uint64_t) claim;
  _Atomic(int64_t) left;   /* send: chunks not acknowledged; receive: see flow_rx.c */
  _Atomic(uint64_t) edges; /* receive: see flow_rx.c */
  size_t received;         /* receive: the message's size, once known */
};

/* What one instance has of a link. */
struct link_instance {
  struct harp_post post; /* something was posted, or the link failed */
  struct net_link *link;
  struct harp_instance *instance;
  uint64_t cursor; /* send: oldest message that may have chunks left */
};

/* A chunk that was pulled, until its bytes are acknowledged. */
struct chunk_out {
  uint8_t header[CHUNK_CHECKED_HEADER_SIZE];
  uint8_t trailer[CHUNK_TRAILER_SIZE];
  struct net_request *request;
  uint32_t left; /* bytes not acknowledged, header and trailer included */
};

enum flow_state { FLOW_OPENING, FLOW_GREETING, FLOW_OPEN, FLOW_OVER };

struct link_flow {
  struct net_link *link;                         /* NULL: the link is closed, the flow lingers */
  struct net_listener *listener;                 /* until the hello has come */
  struct link_flow *next;                        /* of its instance's list */
  struct link_flow *unauth_older, *unauth_newer; /* while it has a listener */
  struct transport *transport;
  struct harp_instance *instance;
  struct harp_tcp *tcp; /* NULL: over */
  uint16_t number;
  uint16_t local_port;         /* reserved for this flow alone; 0: the listener's */
  uint8_t state;               /* enum flow_state */
  bool fin_in;                 /* the peer sends no more */
  bool checked;                /* chunks have a checked header and a trailer */
  uint32_t epoch;              /* how often its connection was replaced */
  struct link_flow *candidate; /* is being opened to take this one's place */
  struct link_flow *replaces;  /* the other way round */
  uint64_t born;               /* ns of its instance's running time */
  uint64_t probed;             /* ns: when the peer was last asked for a sign of life */
  uint64_t waits_since;        /* ns: the last tick at which nothing was missed from the peer */
  uint64_t opened;             /* the same by the wall's clock */
  int published;               /* entry of the statistics file; -1: none */

  uint8_t greeting[HELLO_SIZE];  /* hello or welcome, ours, until acknowledged */
  uint32_t greeting_left;        /* of ours: bytes not acknowledged */
  uint8_t rx_header[HELLO_SIZE]; /* the peer's greeting or chunk header so far */
  uint32_t rx_header_size;
  struct proof_transcript proof; /* with a key */

  /* Sending: a ring of chunks, oldest at chunk_tail; NULL in a flow that came in. */
  struct chunk_out *chunks;
  uint32_t chunk_head, chunk_tail;
  uint64_t acked;             /* bytes of chunks, over all epochs */
  _Atomic(uint64_t) held;     /* bytes of chunks that are not acknowledged */
  _Atomic(uint64_t) cost;     /* ns that 4 KiB take, lately; see flow_sched.c */
  uint64_t sample_since;      /* ns: since when it has been busy, or last was judged */
  uint64_t sample_bytes;      /* acknowledged since then */
  _Atomic(uint64_t) answered; /* ns: when the peer was heard on it, as of the last tick */

  /* Receiving: the chunk that is coming in. */
  uint64_t received_before;    /* bytes of chunks, over earlier epochs */
  struct net_request *request; /* NULL: between chunks */
  struct chunk chunk;
  uint32_t chunk_left;
  uint8_t *offered; /* where the stack may have copied payload to */
  uint32_t crc;     /* of its payload so far, if it has a trailer */
  uint32_t stride;  /* the largest segment's payload so far */
  bool stalled;     /* waits for a receive to be posted */
};

struct net_link {
  struct transport *transport;
  struct net_link *next; /* of the transport's list, or the listener's queue */
  bool sends;
  atomic_bool connecting; /* connect has not returned it yet */
  atomic_bool called;     /* connect was called for it since its last tick */
  atomic_bool abandoned;  /* nobody calls connect for it any more */
  unsigned calls;         /* of connect that are at work on it; under transport->lock */
  uint64_t called_at;     /* ns of running time of flow 0's instance: the last such tick */
  uint64_t id;
  struct harp_endpoint peer;
  char peer_name[PEER_NAME_SIZE];
  _Atomic(uint16_t) peer_mtu; /* as each of its flows is told; instances open them at once */
  bool peer_kernel_address;   /* its kernel answers ARP, also for a process that is stopped */
  uint16_t flow_count;
  uint32_t chunk_size;           /* send: bytes of a full chunk */
  struct handle handle;          /* send: of the listener, to open flows again */
  struct net_listener *listener; /* receive: open as long as the link, for the same reason */
  _Atomic(uint16_t) flows_open;
  _Atomic(uint16_t) flows_ended; /* the peer sends no more on them */
  struct net_region *regions;    /* memory registered on it */
  _Atomic(bool) closing;
  _Atomic(bool) stalled;                       /* receive: a flow waits for one to be posted */
  struct link_flow *_Atomic flows[LINK_FLOWS]; /* each is its instance's */
  unsigned part_count;
  struct link_instance parts[HARP_ENGINE_INSTANCES];
  atomic_int error;          /* negative errno; 0: none */
  atomic_bool failing;       /* the first failure decides, and is about to set error */
  _Atomic(uint64_t) doubted; /* ns: when a flow of it last was suspected to be dead */

  /* The application's thread writes, pollers read. */
  _Alignas(64) _Atomic(uint64_t) posted; /* messages ever posted */
  _Alignas(64) struct net_request requests[LINK_REQUESTS];
};

/* Lives until NCCL has closed it and so are all links that came through it. */
struct net_listener {
  struct transport *transport;
  atomic_uint users;
  atomic_bool closed; /* no new links */
  uint8_t token[TOKEN_SIZE];
  uint16_t ports[HARP_ENGINE_INSTANCES];
  struct harp_listener *stack_listeners[HARP_ENGINE_INSTANCES];
  pthread_mutex_t lock;      /* the list below: pollers and the service thread */
  struct net_link *incoming; /* not yet accepted, oldest first */
};

/* --- transport.c --- */

struct transport {
  struct harp_engine *engine;
  pthread_mutex_t lock;    /* the two lists of links; never taken under a poll lock */
  atomic_int trace_wanted; /* enum in transport.c: asked for once */
  char trace_reason[200];
  bool checksum;        /* HARP_CHECKSUM=1: our chunks carry a trailer */
  struct proof_key key; /* HARP_KEY_FILE */
  struct aborts aborts;
  atomic_bool warned_of_mtu; /* once is enough, whatever the number of links */
  struct net_link *links;    /* open, or being connected (link->connecting) */
  /* By instance, under its poll lock. */
  struct transport_instance {
    struct harp_ticker ticker;
    struct transport *transport;
    struct link_flow *flows; /* all of them; without a link and a listener they linger */
    struct link_flow *unauth_oldest, *unauth_newest; /* connected, no hello yet */
    unsigned unauthenticated;
    struct retired_port *retired;
  } parts[HARP_ENGINE_INSTANCES];
  atomic_bool published[HARP_STAT_FLOWS]; /* entries in use */
};

/* The open transport, or NULL with *error set (-ENODEV: no init; -EPERM: in a forked child). */
struct transport *transport_get(int *error);
/* 0, or -EPERM in a forked child, which has no HARP: nothing may be touched there. */
int transport_forked(void);
/* Speaks what workers had to say, and has the trace written out that the first
 * failure asks for; from a thread of NCCL's. */
void transport_drain_log(void);
/* Any thread: something has gone wrong that the trace may explain. */
void transport_request_trace(struct transport *transport, const char *reason);
/* Under the poll lock. Gives a local port back after a while: whatever of the peer's
 * is still on its way must meet HARP's connection in TIME-WAIT, not the kernel. */
void transport_retire_port(struct transport *transport, struct harp_instance *instance,
                           uint16_t port);
void transport_add_link(struct transport *transport, struct net_link *link);
void transport_remove_link(struct transport *transport, struct net_link *link);

/* --- link.c --- */

struct net_link *link_create(struct transport *transport, bool sends, uint64_t id,
                             struct harp_endpoint peer, uint16_t flow_count);
/* Under a poll lock: the first failure decides; says why, once. */
__attribute__((format(printf, 3, 4))) void link_fail(struct net_link *link, int error,
                                                     const char *format, ...);
/* Under a poll lock: the peer has closed a flow and nothing is outstanding. That is
 * no failure until something is posted. */
void link_over(struct net_link *link);
/* Service thread: ends the link's flows in all instances, gently if nothing is
 * outstanding. Nothing of the user's is touched afterwards. false: a worker
 * does not answer and may still hold it. */
bool link_detach(struct net_link *link);
/* The same, and frees it. */
void link_destroy(struct net_link *link);
/* Service thread: memory that was registered on this link goes. If a request in
 * it is outstanding, the whole link ends, and nothing of the user's is touched
 * afterwards: NCCL gives back the memory of a communicator that has failed, and
 * closes its comms later. */
void link_lose_memory(struct net_link *link, const struct net_region *region);
/* Polls where the link's flows live. */
void link_progress(struct net_link *link);
/* How many chunks a message of so many bytes has: an empty one has one. */
static inline uint64_t link_chunks(const struct net_link *link, size_t size)
{
  return size == 0 ? 1 : (size + link->chunk_size - 1) / link->chunk_size;
}
/* No request is outstanding. */
bool link_idle(const struct net_link *link);

/* --- link_connect.c --- */

/* Under a poll lock, at every tick: a link that does not come up, or that nobody
 * takes from connect, fails. */
void link_watch_opening(struct link_flow *flow);

/* --- registration.c --- */

/* What NCCL has not deregistered; nothing refers to it any more. */
void link_give_memory_back(struct net_link *link);

/* --- link_flow.c; everything under the flow's poll lock --- */

/* An event of the flow, for the trace. */
static inline void flow_trace(struct link_flow *flow, enum harp_trace_event event, uint32_t a,
                              uint32_t b)
{
  uint16_t port = flow->local_port ? flow->local_port
                  : flow->tcp      ? harp_flow_local_port(flow->tcp)
                                   : 0xffff;
  harp_trace(&flow->instance->trace, flow->instance->now, port, event, a, b);
}

/* Bytes of a chunk's header on this flow. */
static inline uint32_t flow_header_size(const struct link_flow *flow)
{
  return flow->checked ? CHUNK_CHECKED_HEADER_SIZE : CHUNK_HEADER_SIZE;
}

struct link_flow *flow_create(struct transport *transport, struct harp_instance *instance);
/* Opens the connection of a link's flow to the peer's instance that serves it. */
int flow_connect(struct link_flow *flow, const struct net_link *link);
void flow_adopt(struct link_flow *flow, struct harp_tcp *tcp);
/* flow goes on with the connection of from, which has none then. */
void flow_take_connection(struct link_flow *flow, struct link_flow *from);
void flow_set_link(struct link_flow *flow, struct net_link *link, uint16_t number);
/* The greetings have passed: the peer is a HARP host. */
void flow_open(struct link_flow *flow);
/* The same for a flow that was open before. */
void flow_reopen(struct link_flow *flow);
/* Lets go of the link. gently: everything pushed is sent, then FIN, and the
 * flow lingers alone until that is acknowledged; else RST. */
void flow_end(struct link_flow *flow, bool gently);
/* Frees what has no connection any more. */
void flow_free(struct link_flow *flow);
/* The last of it before the stack itself is destroyed. */
void flow_leave(struct link_flow *flow);
/* Resets the connection; the flow stays its link's until that is closed. */
void flow_kill(struct link_flow *flow);
/* Sends a greeting of ours, which is complete in flow->greeting. */
void flow_start_hello(struct link_flow *flow, uint32_t size);
void flow_publish(struct link_flow *flow);
/* The last bytes, FIN included, are acknowledged. */
bool flow_drained(const struct link_flow *flow);

/* --- flow_tx.c --- */

void flow_pull(void *user, struct harp_tcp *tcp, uint32_t room);
void flow_acked(void *user, struct harp_tcp *tcp, uint32_t bytes);

/* --- flow_sched.c --- */

/* The flow is to take a chunk of so many bytes; false: another one was asked to. */
bool flow_takes(struct link_flow *flow, uint32_t bytes);
void flow_holds_more(struct link_flow *flow, uint32_t bytes);
void flow_holds_less(struct link_flow *flow, uint32_t bytes);
/* It has a connection, has none any more. */
void flow_sched_begin(struct link_flow *flow);
void flow_sched_end(struct link_flow *flow);
void flow_sched_tick(struct link_flow *flow);

/* --- flow_liveness.c --- */

/* At every tick, now in ns: asks a silent peer for a sign of life while messages are outstanding.
 */
void flow_watch_peer(struct link_flow *flow, uint64_t now);

/* --- flow_rx.c --- */

size_t flow_deliver(void *user, struct harp_tcp *tcp, const uint8_t *data, size_t length);
uint8_t *flow_rx_buffer(void *user, struct harp_tcp *tcp, uint32_t length);
/* The claim of a receive that is posted for a message. */
uint64_t receive_unclaimed(uint64_t message);
/* A receive was posted: goes on if the flow waits for one. */
void flow_resume(struct link_flow *flow);

/* So many bytes of chunks, oldest first, are acknowledged. */
void flow_skip(struct link_flow *flow, uint64_t bytes);
/* Pushes again everything that is not acknowledged. false: the stack has no room
 * for it, and the stream has a hole. */
bool flow_push_again(struct link_flow *flow);

/* --- flow_replace.c --- */

/* At every tick: is the flow's connection dead, and does its replacement get on? */
void flow_watch(struct link_flow *flow, uint64_t now);
/* Of a flow that sends. */
bool flow_is_dead(const struct link_flow *flow, uint64_t now);
/* Sender: the candidate was welcomed. It is gone afterwards. */
void flow_candidate_welcomed(struct link_flow *candidate, const struct welcome *welcome);
/* Receiver: the flow of this instance that a hello names; NULL: there is none yet. */
struct link_flow *flow_named(struct link_flow *fresh, const struct hello *hello);
/* fresh's connection becomes old's, and fresh is gone. Returns bytes that the
 * old connection has received, its greeting included. */
uint64_t flow_transplant(struct link_flow *old, struct link_flow *fresh);
/* A greeting for a flow's connection with this epoch. -EIO: no challenge could be made. */
int flow_write_hello(struct link_flow *flow, const struct net_link *link, uint16_t number);

/* --- The peer's greeting is complete in flow->rx_header; false: the flow is gone --- */

bool listener_input(struct link_flow *flow);  /* link_listen.c */
bool connector_input(struct link_flow *flow); /* link_connect.c */

/* link_listen.c: under the poll lock. It is no unauthenticated peer any more, or gone. */
void listener_forget(struct link_flow *flow);

/* link_listen.c: one user less; the last one's going ends the listener. Service thread. */
void listener_put(struct net_listener *listener);

#endif
