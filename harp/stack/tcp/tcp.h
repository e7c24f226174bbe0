/* SPDX-License-Identifier: Apache-2.0 */
/* The transmission control block. */
#ifndef HARP_STACK_TCP_H
#define HARP_STACK_TCP_H

#include <netinet/tcp.h> /* the names of states */
#include <stdbool.h>
#include <stdint.h>

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
  TCP_MSS_FLOOR = 88,    /* smaller offers are raised (CVE-2019-11479) */
  TCP_DEFAULT_MSS = 536, /* RFC 9293, 3.7.1 */
  TCP_MAX_REFERENCES = 4096,
  TCP_TIMESTAMP_OPTION = 12, /* bytes, padded */
  TCP_DUPTHRESH = 3,
};

enum harp_timer {
  TIMER_RTO,  /* retransmission; of SYN and SYN-ACK; persist, while the peer's window is closed */
  TIMER_RACK, /* the reordering window ends (RFC 8985, 6.3) */
  TIMER_TLP,  /* the tail loss probe is due (7.2); never beside TIMER_RACK */
  TIMER_DELAYED_ACK,
  TIMER_KEEPALIVE,
  TIMER_USER,      /* user timeout (RFC 5482) */
  TIMER_TIME_WAIT, /* TIME-WAIT, and FIN-WAIT-2 without an owner */
  TIMERS
};
#define TIMER_OFF UINT64_MAX

enum harp_recovery { RECOVERY_NONE, RECOVERY_FAST, RECOVERY_RTO };

/* Whether this side owes the peer an acknowledgement. */
enum tcp_ack_state {
  ACK_IDLE, /* none, or the delayed-ACK timer runs */
  ACK_HELD, /* one, at the flush after the next: data may carry it */
  ACK_DUE,  /* one, at the next flush */
};

/* The send sequence space (RFC 9293, 3.3.1). Sequence numbers; windows and sizes in bytes. */
struct tcp_snd {
  uint32_t una, nxt, wnd;
  uint32_t end; /* of what was pushed */
  uint32_t wl1, wl2;
  uint32_t max_wnd;
  uint32_t edge; /* the highest right edge of the peer's window so far */
  uint32_t mss;  /* payload of a full segment, options subtracted */
  uint32_t peer_mss;
  uint32_t iss;
  uint32_t short_end; /* end of the latest segment that was not full */
  uint32_t push_end;  /* what was pushed before TCP_NODELAY was set: it waits for nothing */
  uint8_t wscale;
  bool nodelay, cork;
  bool fin_queued, fin_sent;
  bool window_limited;
};

/* The receive sequence space (RFC 9293, 3.3.1), and what waits to be read. */
struct tcp_rcv {
  uint32_t nxt;
  uint32_t right;  /* right edge ever advertised: what is enforced */
  uint32_t queued; /* in-order bytes that wait to be read */
  uint32_t buf;    /* bytes: the size of the receive buffer */
  struct harp_packet *queue, *queue_tail;
  struct tcp_ooo_queue *ooo; /* NULL: no hole */
  uint32_t irs;
  uint32_t fin_seq;
  uint32_t dsack_start, dsack_end; /* to report once; equal: none */
  uint8_t wscale;
  bool fin_received;
  bool fin_newest;   /* the FIN that waits is what came last beyond a hole */
  bool mem_pressure; /* data in order found no memory: the window says so until there is some */
};

/* tcp_ack_sched.c */
struct tcp_ack_schedule {
  uint32_t last_sent;    /* Last.ACK.sent of RFC 7323 */
  uint32_t rcv_mss;      /* bytes: estimate of the peer's full segments */
  uint32_t last_smaller; /* the last segment's size, if it may be a full one; else 0 */
  uint8_t state;         /* enum tcp_ack_state */
  uint8_t quick;         /* after a hole: so many more segments are acknowledged at once */
  bool listed;           /* in the stack's list of held acknowledgements */
  struct harp_tcp *next; /* in that list */
};

/* Timestamps (RFC 7323). */
struct tcp_ts {
  uint32_t recent; /* TS.Recent */
  uint32_t offset; /* of this side's clock */
  uint64_t recent_time;
};

/* The send queue (tcp_sndq.c): references to bytes until they are acknowledged. */
struct tcp_sndq {
  struct harp_reference *first, *last;
  struct harp_reference *cursor; /* holds snd.nxt, or NULL */
  uint32_t count;
};

/* Transmit records: the scoreboard of RFC 2018 and 8985. */
struct tcp_flight {
  struct harp_record *first, *last;               /* by sequence */
  struct harp_record *oldest, *newest;            /* in flight, by time */
  struct harp_record *lost_first, *lost_last;     /* to send again, by older/newer */
  struct harp_record *sacked_first, *sacked_last; /* by older/newer: lower, higher */
  struct harp_record *sack_hint;                  /* the sacked one that grew last; NULL: gone */
  uint32_t sacked_out, lost_out, retrans_out;     /* bytes */
  uint32_t high_sacked; /* end of the highest byte ever selectively acknowledged */
};

/* RACK (RFC 8985, 6; tcp_rack.c). Times in ns. */
struct tcp_rack {
  uint64_t sent, rtt; /* of the newest delivered record */
  uint32_t end;
  uint8_t reo_multiplier, reo_persist;
  bool reordering_seen;
  uint64_t reo_late;        /* how late segments come, as far as seen and not long ago */
  uint64_t reo_waited;      /* the window when the last loss was found */
  uint64_t dsack_round_end; /* reports of duplicates until then are one */
};

/* The tail loss probe (RFC 8985, 7). */
struct tcp_tlp {
  uint32_t end;     /* snd.nxt when the probe was sent */
  bool outstanding; /* a probe is out, */
  bool is_copy;     /* of data that was sent before */
};

/* Proportional Rate Reduction (RFC 9937; tcp_prr.c). Bytes. */
struct tcp_prr {
  uint32_t delivered, out, recover_fs;
  uint32_t credit; /* that duplicates stood for, without SACK */
};

/* What an undo restores (tcp_undo.c). */
struct tcp_undo {
  uint32_t cwnd, ssthresh;
  uint32_t retransmits; /* bytes sent again in this recovery, not yet shown needless */
  uint32_t stamp;       /* the timestamp that the first of them carried */
  uint32_t start, end;  /* of recovery: snd.una at its beginning, snd.nxt at its end */
  uint64_t deadline;    /* ns, behind recovery: until when a DSACK tells of it */
  bool possible;
};

/* Round-trip time, ns (RFC 6298; tcp_rtt.c). */
struct tcp_rtt {
  uint64_t srtt, rttvar, rto, min;
  uint64_t rto_min;
};

struct harp_tcp {
  /* Found by every segment. */
  struct harp_tcp *hash_next;
  struct harp_stack *stack;
  union {
    struct {
      uint16_t local_port, remote_port;
      uint32_t remote_address; /* network order */
    };
    uint64_t key; /* the three in one word: tcp_key */
  };
  uint32_t local_address; /* network order */
  uint8_t state;
  bool timestamps;  /* agreed on */
  bool fin_waiting; /* a FIN came ahead of a hole: it stands at rcv.fin_seq */
  bool detached;    /* no owner is left: finish alone */
  struct tcp_snd snd;
  struct tcp_rcv rcv;
  struct tcp_ts ts;
  struct tcp_ack_schedule ack;
  bool harp_peer, active, window_scaling, sack;
  bool dirty;  /* in the stack's list for the next flush */
  bool ending; /* its owner is being told: the block stays until that returns */
  uint8_t tos; /* IP_TOS, of all its packets */
  struct tcp_sndq sndq;
  struct tcp_flight flight;

  /* Congestion control and loss recovery. */
  uint32_t cwnd, ssthresh; /* bytes */
  uint32_t growth_due; /* bytes sacked while snd.una stands still, which cwnd has not grown by */
  bool cwnd_limited;
  uint8_t recovery; /* enum harp_recovery */
  uint8_t backoff;
  uint8_t duplicates; /* acknowledgements in a row, without SACK */
  uint8_t syn_transmits;
  uint8_t probes;          /* keepalive or window probes unanswered */
  uint32_t recovery_point; /* snd.nxt when recovery began */
  struct tcp_rtt rtt;
  struct tcp_rack rack;
  struct tcp_tlp tlp;
  struct tcp_prr prr;
  struct tcp_undo undo;
  struct harp_cc cc;
  struct harp_hystart hystart;

  /* ns */
  uint64_t syn_sent;
  uint64_t last_send; /* of payload */
  uint64_t last_receive, last_progress;
  struct harp_limit challenge_limit; /* RFC 5961, 7: of SYNs and resets, */
  struct harp_limit answer_limit;    /* and of bare segments: neither uses up the other's */

  /* Timers: the earliest decides the place in the stack's heap. */
  uint64_t timers[TIMERS];
  uint64_t heap_key;
  uint32_t heap_index; /* UINT32_MAX: not in it */

  /* Owner, and the lists that it stands in. */
  const struct harp_flow_ops *ops;
  void *user;
  struct harp_listener *listener;  /* while in handshake or unclaimed */
  struct harp_list half_open_link; /* among its listener's */
  struct harp_list turn; /* to make room: among all handshakes, or, ownerless, in TIME-WAIT */
  struct harp_tcp *dirty_next;
  struct harp_neighbour *neighbour; /* NULL: nothing was sent yet */
  struct harp_list neighbour_link;  /* among its users */
  uint32_t next_hop;                /* network order */
  uint32_t user_timeout_ms, keep_idle_ms, keep_interval_ms, keep_probes;
  uint32_t retransmits;
  uint32_t user_mss;       /* TCP_MAXSEG; 0: none */
  uint16_t advertised_mss; /* by our SYN */
  uint64_t bytes_in, bytes_out;

  /* For TCP_INFO alone. */
  uint64_t bytes_retransmitted;
  uint64_t busy_since, busy_time; /* ns, that something was in flight; since 0: nothing is */
  uint32_t duplicates_reported;   /* segments, by DSACK */
  uint32_t reorderings;           /* that the sender has noticed */
  uint32_t out_of_order;          /* segments received */
  uint16_t timeouts, timeout_recoveries;
  int error;
};

static inline bool tcp_synchronized(const struct harp_tcp *tcp)
{
  return tcp->state != TCP_SYN_SENT && tcp->state != TCP_SYN_RECV && tcp->state != TCP_CLOSE;
}

/* The sequence space in flight by the sender's best knowledge (RFC 6675's pipe). */
static inline uint32_t tcp_in_flight(const struct harp_tcp *tcp)
{
  return tcp->snd.nxt - tcp->snd.una - tcp->flight.sacked_out - tcp->flight.lost_out +
         tcp->flight.retrans_out;
}

static inline bool tcp_can_receive(const struct harp_tcp *tcp)
{
  return tcp->state == TCP_ESTABLISHED || tcp->state == TCP_FIN_WAIT1 ||
         tcp->state == TCP_FIN_WAIT2;
}

/* For the engine's trace: things that are rare, or ought to be. */
static inline void stack_event(const struct harp_tcp *tcp, enum harp_stack_event event, uint32_t a,
                               uint32_t b)
{
  const struct harp_stack_io *io = &tcp->stack->io;
  if (io->event) {
    io->event(io->user, tcp->local_port, event, a, b);
  }
}

/* Puts the connection on the list of those that the next flush looks at. */
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
