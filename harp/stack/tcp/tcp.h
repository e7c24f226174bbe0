/* SPDX-License-Identifier: Apache-2.0 */
/* The transmission control block (RFC 9293, 3.3.1): the state of one connection. */
#ifndef HARP_STACK_TCP_H
#define HARP_STACK_TCP_H

#include <netinet/tcp.h> /* names of the states */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "harp/headers.h"
#include "harp/stack/flow.h"
#include "harp/stack/limit.h"
#include "harp/stack/list.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/cc/cc.h"

struct harp_listener;
struct harp_neighbour;
struct harp_packet;
struct harp_record;
struct harp_reference;
struct harp_stack;
struct tcp_ooo_queue;

enum {
  TCP_MAX_REFERENCES = 4096,
  TCP_TIMESTAMP_OPTION = 12, /* bytes, padded */
  TCP_DUPTHRESH = 3,
};

/* In the order in which they fire if several are due. */
enum harp_timer {
  TIMER_TLP,  /* the tail loss probe is due (RFC 8985, 7.2); never runs together with TIMER_RACK. It
               * restarts TIMER_RTO. */
  TIMER_RTO,  /* retransmission; persist timer while the peer's window is closed */
  TIMER_RACK, /* end of the reordering window (RFC 8985, 6.3) */
  TIMER_DELAYED_ACK,
  TIMER_KEEPALIVE,
  TIMER_USER,  /* user timeout (RFC 5482) */
  TIMER_CLOSE, /* end of TIME-WAIT, and of FIN-WAIT-2 without an owner; check for unread data */
  TIMERS
};
#define TIMER_OFF UINT64_MAX

enum harp_recovery { RECOVERY_NONE, RECOVERY_FAST, RECOVERY_RTO };

/* Whether an acknowledgement to the peer is due. */
enum tcp_ack_state {
  ACK_IDLE, /* none is due, or the delayed-ACK timer runs */
  ACK_HELD, /* due at the flush after the next; data sent before then can carry it */
  ACK_DUE,  /* due at the next flush */
};

/* What the sender waits for. */
enum tcp_wait {
  TCP_WAIT_NOTHING, /* no data is unacknowledged: the owner has none to send */
  TCP_WAIT_ACK,     /* data is in flight */
  TCP_WAIT_WINDOW,  /* the peer's window is too small for one more segment */
  TCP_WAIT_DEVICE,  /* the port's queue or the stack's memory is full */
  TCP_WAITS
};

/* tcp_wait.c */
struct tcp_waits {
  uint64_t since;          /* ns: begin of the current wait */
  uint64_t sum[TCP_WAITS]; /* ns: earlier waits */
  enum tcp_wait now;
};

/* The send sequence space (RFC 9293, 3.3.1). Sequence numbers; windows and sizes in bytes. */
struct tcp_snd {
  uint32_t una, nxt, wnd;
  uint32_t end; /* end of the pushed data */
  uint32_t wl1, wl2;
  uint32_t max_wnd;
  uint32_t edge; /* highest right edge of the peer's window so far, behind our FIN if it is there */
  uint32_t mss;  /* payload of a full segment, without options */
  uint32_t peer_mss;
  uint32_t iss;
  uint32_t short_end; /* end of the latest segment shorter than mss (Nagle) */
  uint32_t push_end;  /* end of the data pushed before TCP_NODELAY was set: never delayed */
  uint8_t wscale;
  bool nodelay, cork;
  bool fin_queued, fin_sent;
  bool window_limited;
};

/* The receive sequence space (RFC 9293, 3.3.1) and the receive queue. */
struct tcp_rcv {
  uint32_t nxt;
  uint32_t right;  /* highest right edge ever advertised; the stack cuts data beyond it */
  uint32_t queued; /* bytes in the receive queue */
  uint32_t buf;    /* size of the receive buffer, bytes */
  struct harp_packet *queue, *queue_tail;
  struct tcp_ooo_queue *ooo; /* out-of-order queue; NULL: empty */
  uint32_t irs;
  uint32_t fin_seq;
  uint32_t dsack_start, dsack_end; /* DSACK block to send once; equal: none */
  uint8_t wscale;
  bool fin_received;
  bool fin_newest;   /* the FIN arrived later than every block of the out-of-order queue */
  bool mem_pressure; /* in-order data found no packet buffer: window 0 until there is one */
};

/* tcp_ack_sched.c */
struct tcp_ack_schedule {
  uint32_t last_sent;    /* Last.ACK.sent of RFC 7323 */
  uint32_t rcv_mss;      /* bytes: estimate of the peer's full segments */
  uint32_t last_smaller; /* the last segment's size, if it may be a full one; else 0 */
  uint32_t payload_out; /* bytes that this host had sent when the last burst arrived; modulo 2^32 */
  uint8_t state;        /* enum tcp_ack_state */
  uint8_t quick;        /* after a loss: segments still to acknowledge at once */
  bool may_wait;        /* the owner lets the ACK of the segment just delivered wait */
  bool more;            /* these bytes do not end their message; valid while the ACK waits */
  bool yields;          /* this host's own data goes first; only between HARP hosts */
  bool listed;          /* in stack->held */
  struct harp_tcp *next; /* in that list */
};

/* tcp_shared_ack.c: the sender's side */
struct tcp_shared_ack {
  uint32_t begin, end; /* the last bytes pushed that may be acknowledged late; equal: none */
  uint32_t sampled_ms; /* time of the last sample of the round trip; modulo 2^32 */
};

/* Timestamps (RFC 7323). */
struct tcp_ts {
  uint32_t recent; /* TS.Recent */
  uint32_t offset; /* added to our timestamp clock */
  uint64_t recent_time;
};

/* The send queue (tcp_sndq.c): references to unacknowledged and unsent bytes. */
struct tcp_sndq {
  struct harp_reference *first, *last;
  struct harp_reference *cursor; /* the reference that holds snd.nxt, or NULL */
  uint32_t count;
};

/* Transmit records: the scoreboard of RFC 2018 and RFC 8985. */
struct tcp_flight {
  struct harp_record *first, *last;               /* by sequence */
  struct harp_record *oldest, *newest;            /* in flight, by send time */
  struct harp_record *lost_first, *lost_last;     /* to retransmit, linked by older and newer */
  struct harp_record *sacked_first, *sacked_last; /* by sequence */
  struct harp_record *sack_hint;                  /* grew last; searches begin here */
  uint32_t sacked_out, lost_out, retrans_out;     /* bytes */
  uint32_t high_sacked;                           /* end of the highest SACKed byte so far */
  uint32_t sacked_runs;                           /* number of them */
};

/* RACK (RFC 8985, 6; tcp_rack.c). Times in ns. */
struct tcp_rack {
  uint64_t sent, rtt; /* of the most recently sent record that was delivered */
  uint32_t end;
  uint8_t reo_multiplier, reo_persist;
  bool reordering_seen;
  uint64_t reo_late;        /* ns: largest lateness seen; each recovery reduces it */
  uint64_t reo_waited;      /* the reordering window when the last loss was detected */
  uint64_t dsack_round_end; /* DSACKs before this time count as one */
};

/* The tail loss probe (RFC 8985, 7). */
struct tcp_tlp {
  uint32_t end;           /* snd.nxt when the probe was sent */
  bool outstanding;       /* a probe is in flight */
  bool is_retransmission; /* the probe is a retransmission, not new data */
  bool reacted;           /* fast recovery has begun since: cwnd is reduced already */
};

/* Proportional Rate Reduction (RFC 9937; tcp_prr.c). Bytes. */
struct tcp_prr {
  uint32_t delivered, out, recover_fs;
  uint32_t credit; /* counted as delivered for duplicate ACKs, without SACK */
};

/* Undo of a spurious reaction to a loss (tcp_undo.c). */
struct tcp_undo {
  uint32_t cwnd, ssthresh; /* before the loss (tcp_cwnd.c) */
  uint32_t retransmits;    /* bytes retransmitted in this recovery and not yet reported by DSACK */
  uint32_t stamp;          /* timestamp of the first of these retransmissions */
  uint32_t start, end;     /* snd.una at the begin of recovery, snd.nxt at its end */
  uint64_t deadline;       /* ns: after recovery, a DSACK can undo it until this time */
  bool possible;
};

/* The headers with which all segments of a connection begin (tcp_transmit.c), for an empty IPv4
 * packet. TCP's fields that differ between segments are zero. */
struct tcp_header_template {
  uint8_t bytes[ETH_HEADER + IP_HEADER + TCP_HEADER];
  uint8_t length;      /* of bytes; 0: not written yet */
  uint16_t pseudo_sum; /* of the pseudo-header, folded */
};

/* Round-trip time, ns (RFC 6298; tcp_rtt.c). */
struct tcp_rtt {
  uint64_t srtt, rttvar, rto, min;
  uint64_t rto_min;
};

struct harp_tcp {
  /* Used for every segment. */
  struct harp_tcp *hash_next;
  struct harp_stack *stack;
  union {
    struct {
      uint16_t local_port, remote_port;
      uint32_t remote_address; /* network order */
    };
    uint64_t key; /* all three in one word (tcp_key) */
  };
  uint32_t local_address; /* network order */
  uint8_t state;
  bool timestamps;  /* both SYNs carried the option (RFC 7323) */
  bool fin_waiting; /* a FIN has arrived and RCV.NXT has not reached it yet; rcv.fin_seq */
  bool detached;    /* the owner has closed it; the stack finishes the close alone */
  struct tcp_ts ts;
  struct tcp_rcv rcv;
  struct tcp_snd snd;
  struct tcp_shared_ack shared_ack;
  struct tcp_ack_schedule ack;
  bool harp_peer, active, window_scaling, sack;
  bool dirty;  /* in stack->dirty, for the next flush */
  bool ending; /* closed() is running: the block must not be freed */
  uint8_t tos; /* IP_TOS of all its packets */
  struct tcp_sndq sndq;
  struct tcp_flight flight;

  /* Congestion control and loss recovery. */
  uint32_t cwnd, ssthresh; /* bytes; only tcp_cwnd.h and tcp_cwnd.c change them */
  uint32_t growth_due;     /* bytes SACKed before the next advance of SND.UNA: cwnd grows then */
  uint32_t cwnd_end;       /* of the data that was sent while cwnd was the limit */
  bool cwnd_limited;       /* cwnd was the limit; until cwnd_end is acknowledged */
  bool cwnd_used;          /* cwnd counts as the limit until shared_ack.end is acknowledged */
  uint8_t recovery;        /* enum harp_recovery */
  uint8_t backoff;         /* doublings of the RTO; a sample of the round trip ends them */
  uint8_t tries;           /* timeouts in a row, without an acknowledgement of new data */
  uint8_t duplicates;      /* duplicate ACKs in a row, without SACK */
  uint8_t syn_transmits;
  uint8_t probes;          /* unanswered keepalive or window probes */
  uint32_t recovery_point; /* snd.nxt when recovery began */
  uint32_t retransmits;
  struct tcp_rtt rtt;
  struct tcp_rack rack;
  struct tcp_tlp tlp;
  struct tcp_prr prr;
  struct tcp_undo undo;
  struct harp_cc cc;
  struct harp_hystart hystart;

  struct tcp_header_template headers;
  uint16_t advertised_mss; /* MSS option of our SYN */
  uint32_t user_mss;       /* TCP_MAXSEG; 0: none */

  /* ns */
  uint64_t syn_sent;
  uint64_t last_send; /* of payload */
  uint64_t last_receive, last_progress;
  struct harp_limit challenge_limit; /* challenge ACKs to SYNs and RSTs (RFC 5961, 7) */
  struct harp_limit answer_limit;    /* ACKs to other unacceptable segments; a separate limit */

  /* Timers, ns. heap_key is at most the earliest of them. */
  uint64_t timers[TIMERS];
  uint64_t heap_key;
  uint32_t heap_index; /* UINT32_MAX: not in the heap */
  uint32_t user_timeout_ms;

  /* The owner, and the lists of which the connection is a member. */
  const struct harp_flow_ops *ops;
  void *user;
  struct harp_listener *listener;  /* during the handshake */
  struct harp_list half_open_link; /* in listener->half_open */
  struct harp_list turn; /* in stack->half_open, or without an owner in stack->time_wait */
  struct harp_tcp *dirty_next;
  struct harp_neighbour *neighbour; /* NULL: no segment was sent yet */
  struct harp_list neighbour_link;  /* in neighbour->users */
  uint32_t next_hop;                /* network order */
  uint32_t keep_idle_ms, keep_interval_ms, keep_probes;
  uint64_t bytes_in, bytes_out;
  struct tcp_waits waits;

  /* Used by TCP_INFO only. */
  uint64_t bytes_retransmitted;
  uint32_t duplicates_reported; /* segments, reported by DSACK */
  uint32_t reorderings;         /* reordering events that the sender has detected */
  uint32_t out_of_order;        /* out-of-order segments received */
  uint16_t timeouts, timeout_recoveries;
};

_Static_assert(offsetof(struct harp_tcp, snd.wnd) + sizeof(uint32_t) <= 128,
               "next_of in tcp_predict.c reads two cache lines");

static inline bool tcp_synchronized(const struct harp_tcp *tcp)
{
  return tcp->state != TCP_SYN_SENT && tcp->state != TCP_SYN_RECV && tcp->state != TCP_CLOSE;
}

/* The sender's estimate of the sequence space in flight (RFC 6675's pipe), bytes. */
static inline uint32_t tcp_in_flight(const struct harp_tcp *tcp)
{
  return tcp->snd.nxt - tcp->snd.una - tcp->flight.sacked_out - tcp->flight.lost_out +
         tcp->flight.retrans_out;
}

/* Whether pushed data was never sent. */
static inline bool tcp_has_unsent(const struct harp_tcp *tcp)
{
  return tcp->snd.nxt != tcp->snd.end + tcp->snd.fin_sent;
}

/* Whether there may be a SACK block to send. Most ACKs have none. */
static inline bool tcp_has_gaps(const struct harp_tcp *tcp)
{
  return tcp->rcv.ooo || tcp->fin_waiting || tcp->rcv.dsack_start != tcp->rcv.dsack_end;
}

static inline bool tcp_can_receive(const struct harp_tcp *tcp)
{
  return tcp->state == TCP_ESTABLISHED || tcp->state == TCP_FIN_WAIT1 ||
         tcp->state == TCP_FIN_WAIT2;
}

static inline void tcp_set_tos(struct harp_tcp *tcp, uint8_t tos)
{
  tcp->tos = tos;
  tcp->headers.length = 0; /* the next segment writes them again */
}

/* Reports an event to the engine's trace. */
static inline void stack_event(const struct harp_tcp *tcp, enum harp_stack_event event, uint32_t a,
                               uint32_t b)
{
  const struct harp_stack_io *io = &tcp->stack->io;
  if (io->event) {
    io->event(io->user, tcp->local_port, event, a, b);
  }
}

/* Adds the connection to stack->dirty: the next flush serves it. */
static inline void tcp_mark_dirty(struct harp_tcp *tcp)
{
  struct harp_stack *stack = tcp->stack;
  if (tcp->dirty) {
    return;
  }
  tcp->dirty = true;
  tcp->dirty_next = NULL;
  if (stack->dirty_last) {
    stack->dirty_last->dirty_next = tcp;
  } else {
    stack->dirty = tcp;
  }
  stack->dirty_last = tcp;
}

#endif
