/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transmission control block and what the files of TCP call of each other.
 *
 *   tcp_options.c    options, read and written
 *   tcp_predict.c    the next segment of an open connection, by a short way
 *   tcp_input.c      segment arrives: RFC 9293, 3.10.7, in its order
 *   tcp_ack.c        what an acknowledgement does: RTT, reclaim, window
 *   tcp_sack.c       the scoreboard: SACK (RFC 2018), DSACK (2883)
 *   tcp_recovery.c   what is lost: RACK (RFC 8985), RTO (6298)
 *   tcp_rcvq.c       receive queue: order, reassembly, SACK blocks, window
 *   tcp_ooo.c       the table of what lies beyond holes
 *   tcp_sndq.c       send queue: references to bytes, and transmit records
 *   tcp_output.c     what may be sent, and sending it
 *   tcp_timer.c      deadlines and what happens at them
 *   tcp_conn.c       opening, listening, closing, the connection table
 *   tcp_cookie.c     handshakes without memory (RFC 4987)
 *   tcp_prr.c        how much may be sent in fast recovery (RFC 9937)
 *   cc_cubic.c       congestion control (RFC 9438) behind struct harp_cc_ops
 *   cc_reno.c        another (RFC 5681)
 *   cc_hystart.c     the end of the first slow start (RFC 9406)
 */
#ifndef HARP_STACK_TCP_H
#define HARP_STACK_TCP_H

#include <netinet/tcp.h> /* the names of states */
#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/flow.h"
#include "harp/stack/limit.h"
#include "harp/stack/list.h"
#include "harp/stack/pool.h"
#include "harp/stack/seq.h"
#include "harp/stack/tcp/cc/cc.h"

enum {
  TCP_MSS_FLOOR = 88,    /* smaller offers are raised (CVE-2019-11479) */
  TCP_DEFAULT_MSS = 536, /* RFC 9293, 3.7.1 */
  TCP_MAX_SACKS = 4,
  TCP_MAX_RUNS = 64, /* holes that reassembly keeps, per connection */
  TCP_OOO_NONE = 255,
  TCP_MAX_REFERENCES = 4096,
  TCP_TIMESTAMP_OPTION = 12, /* bytes, padded */
  TCP_DUPTHRESH = 3,
};

/* A received segment, parsed once. */
struct harp_segment {
  uint32_t source, destination; /* addresses, network order */
  uint16_t source_port, destination_port;
  uint32_t seq, ack;
  uint32_t window; /* as on the wire, unscaled */
  uint8_t flags;
  bool has_timestamp, sack_permitted, bad_options;
  int8_t window_scale; /* -1: absent */
  uint8_t sack_count;
  uint16_t mss; /* 0: absent */
  uint32_t timestamp, echo;
  struct {
    uint32_t start, end;
  } sack[TCP_MAX_SACKS];
  const uint8_t *payload;
  uint32_t length;       /* payload bytes */
  uint16_t segment_size; /* of a merged segment; else 0 */
};

/* A reference in the send queue: bytes that live until acknowledged. */
struct harp_reference {
  struct harp_reference *next;
  const uint8_t *data;
  struct harp_packet *packet; /* the copying layer's memory, else NULL */
  uint32_t seq;
  uint32_t length;
  bool end; /* a segment ends with it */
};

/*
 * A transmit record: a stretch of sequence space that went out at one time.
 * Ordered by sequence (prev, next); older and newer link it into the order of
 * time while it is in flight (RFC 8985, 5.1), into the queue of what is to be
 * sent again while it is lost, and into the runs once it is sacked: what is
 * sacked side by side is one record.
 */
struct harp_record {
  struct harp_record *prev, *next;
  struct harp_record *older, *newer;
  struct harp_reference *reference; /* holds the byte at seq; NULL: a bare FIN */
  uint64_t sent;                    /* ns */
  uint32_t seq, end;
  uint16_t transmits;
  bool sacked, lost;
  bool retransmitted; /* in flight again since it was last marked lost */
  bool fin;           /* the last number of the range is the FIN */
};

/* A packet buffer: payload that waits, or the copying layer's unsent bytes. */
enum { HARP_PACKET_SIZE = 2048, HARP_PACKET_DATA = HARP_PACKET_SIZE - 32 };
struct harp_packet {
  struct harp_packet *next;
  uint32_t seq;
  uint32_t offset; /* first byte not yet read */
  uint32_t length; /* bytes in data */
  uint8_t data[HARP_PACKET_DATA] __attribute__((aligned(8)));
};
_Static_assert(sizeof(struct harp_packet) <= HARP_PACKET_SIZE, "a packet buffer is 2 KiB");

/* A run of received bytes beyond a hole. */
struct tcp_ooo_block {
  struct harp_packet *first, *last;
  uint32_t start, end;
};

/* A connection's runs (tcp_ooo.c), in the memory of a packet buffer. */
struct tcp_ooo_queue {
  uint8_t count;
  uint8_t newest;              /* the place of the one that grew last */
  uint8_t order[TCP_MAX_RUNS]; /* places: count of them by sequence, then those that are free */
  uint8_t newer[TCP_MAX_RUNS]; /* places, by place: of those that grew last after it */
  uint8_t older[TCP_MAX_RUNS]; /* and before; TCP_OOO_NONE: none */
  struct tcp_ooo_block run[TCP_MAX_RUNS];
};
_Static_assert(sizeof(struct tcp_ooo_queue) <= HARP_PACKET_SIZE, "it fits a packet buffer");

enum harp_timer {
  TIMER_RETRANSMIT, /* RTO, SYN and window probes */
  TIMER_LOSS,       /* RACK's reordering timer or the tail probe */
  TIMER_DELAYED_ACK,
  TIMER_KEEPALIVE,
  TIMER_USER,  /* user timeout */
  TIMER_STATE, /* TIME-WAIT, FIN-WAIT-2 without an owner */
  TIMERS
};
#define TIMER_OFF UINT64_MAX

enum harp_recovery { RECOVERY_NONE, RECOVERY_FAST, RECOVERY_RTO };

struct harp_tcp {
  /* Line 1: found by every segment. */
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
  bool fin_waiting; /* a FIN came ahead of a hole: it stands at fin_seq */
  bool detached;    /* nobody owns it any more: finish alone */
  uint32_t rcv_nxt;
  uint32_t rcv_right; /* right edge ever advertised: what is enforced */
  uint32_t snd_una, snd_nxt, snd_wnd;
  uint32_t ts_recent;

  /* Line 2: sending. */
  uint32_t snd_end; /* end of what was pushed */
  uint32_t snd_wl1, snd_wl2;
  uint32_t max_snd_wnd;
  uint32_t snd_edge; /* the highest right edge of the peer's window so far */
  uint32_t mss;      /* payload of a full segment, options subtracted */
  uint32_t peer_mss;
  uint32_t iss, irs;
  uint32_t cwnd, ssthresh; /* bytes */
  uint32_t short_end;      /* end of the latest segment that was not full */
  uint32_t push_end;       /* what was pushed before TCP_NODELAY was set: it waits for nothing */
  uint32_t growth_due; /* bytes sacked while snd_una stands still, which cwnd has not grown by */
  uint32_t sacked_out, lost_out, retrans_out; /* bytes */
  uint32_t reference_count;
  uint8_t snd_wscale, rcv_wscale;
  bool nodelay, cork, harp_peer, active, window_scaling;
  bool fin_queued, fin_sent, fin_received;
  bool fin_newest; /* the FIN that waits is what came last beyond a hole */
  bool sack, dirty;
  bool ending; /* its owner is being told: the block stays until that returns */
  bool ack_now, cwnd_limited, window_limited;
  bool ack_held;         /* not in this flush, but in the next */
  bool on_hold;          /* in the stack's list of those */
  bool rcv_mem_pressure; /* data in order found no memory: the window says so until there is some */
  uint8_t tos;           /* IP_TOS, of all its packets */
  uint32_t fin_seq;

  /* Receiving. */
  uint32_t last_ack_sent;
  uint32_t rcvbuf;
  uint32_t queued;       /* in-order bytes that wait to be read */
  uint8_t quick_acks;    /* after a hole, how many more segments are acknowledged at once */
  uint32_t rcv_mss;      /* estimate of the peer's full segments */
  uint32_t last_smaller; /* the last segment's size, if it may be a full one; else 0 */
  struct harp_packet *rcv_queue, *rcv_queue_tail;
  struct tcp_ooo_queue *ooo;       /* NULL: no hole */
  uint32_t dsack_start, dsack_end; /* to report once; equal: none */
  uint64_t ts_recent_time;
  uint32_t ts_offset;

  /* Send queue and records. */
  struct harp_reference *references, *references_last;
  struct harp_reference *send_cursor; /* holds snd_nxt, or NULL */
  struct harp_record *records, *records_last;
  struct harp_record *oldest, *newest;            /* in flight, by time */
  struct harp_record *lost_first, *lost_last;     /* to send again, by older/newer */
  struct harp_record *sacked_first, *sacked_last; /* runs, by older/newer: lower, higher */
  struct harp_record *sack_hint;                  /* the run that grew last; NULL: gone */

  /* Loss recovery. */
  uint8_t recovery; /* enum harp_recovery */
  uint8_t backoff;
  uint8_t duplicates; /* acknowledgements in a row, without SACK */
  uint8_t syn_transmits;
  uint8_t probes; /* keepalive or window probes unanswered */
  uint8_t reo_multiplier, reo_persist;
  bool reordering_seen, undo_possible, loss_timer_is_probe;
  bool probe_outstanding, probe_is_copy;       /* the tail probe; of data that was sent before */
  uint32_t recovery_point;                     /* snd_nxt when recovery began */
  uint32_t prr_delivered, prr_out, prr_flight; /* RFC 9937; the last is RecoverFS */
  uint32_t prr_credit;                         /* bytes that duplicates stood for, without SACK */
  uint32_t high_sacked; /* end of the highest byte ever selectively acknowledged */
  uint32_t probe_end;   /* snd_nxt when the tail probe was sent */
  uint32_t rack_end;
  uint32_t undo_retransmits;     /* bytes sent again in this recovery, not yet shown needless */
  uint32_t undo_stamp;           /* the timestamp that the first of them carried */
  uint32_t undo_start, undo_end; /* of recovery: snd_una at its beginning, snd_nxt at its end */
  uint64_t undo_deadline;        /* behind recovery: until when a DSACK tells of it */
  uint64_t rack_sent, rack_rtt;  /* of the newest delivered record */
  uint64_t reo_late;             /* ns: how late segments come, as far as seen and not long ago */
  uint64_t reo_waited;           /* ns: the window when the last loss was found */
  uint64_t dsack_round_end;      /* ns: reports of duplicates until then are one */
  uint32_t undo_cwnd, undo_ssthresh;

  /* Round-trip time, ns (RFC 6298). */
  uint64_t srtt, rttvar, rto, min_rtt;
  uint64_t syn_sent;
  uint64_t rto_min;
  uint64_t last_send; /* of payload */
  uint64_t last_receive, last_progress;
  struct harp_limit challenge_limit; /* RFC 5961, 7: of SYNs and resets, */
  struct harp_limit answer_limit;    /* and of bare segments: neither uses up the other's */

  /* Timers: the earliest decides the place in the stack's heap. */
  uint64_t timers[TIMERS];
  uint64_t heap_key;
  uint32_t heap_index; /* UINT32_MAX: not in it */

  struct harp_cc cc;
  struct harp_hystart hystart;

  /* Owner. */
  const struct harp_flow_ops *ops;
  void *user;
  struct harp_listener *listener;  /* while in handshake or unclaimed */
  struct harp_list half_open_link; /* among its listener's */
  struct harp_list turn; /* to make room: among all handshakes, or, ownerless, in TIME-WAIT */
  struct harp_tcp *dirty_next;
  struct harp_tcp *held_next;
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

struct harp_listener {
  struct harp_listener *hash_next;
  struct harp_stack *stack;
  const struct harp_flow_ops *ops;
  void *user;
  uint32_t backlog, pending;
  struct harp_list half_open; /* the pending ones, the oldest first */
  uint32_t rcvbuf, user_mss;
  uint8_t rcv_wscale, tos;
  uint64_t cookie_period; /* of the latest cookie */
  uint16_t port;
  bool cookies; /* there was one */
};

static inline bool tcp_synchronized(const struct harp_tcp *tcp)
{
  return tcp->state != TCP_SYN_SENT && tcp->state != TCP_SYN_RECV && tcp->state != TCP_CLOSE;
}

/* The sequence space in flight by the sender's best knowledge (RFC 6675's pipe). */
static inline uint32_t tcp_in_flight(const struct harp_tcp *tcp)
{
  return tcp->snd_nxt - tcp->snd_una - tcp->sacked_out - tcp->lost_out + tcp->retrans_out;
}

static inline bool tcp_can_receive(const struct harp_tcp *tcp)
{
  return tcp->state == TCP_ESTABLISHED || tcp->state == TCP_FIN_WAIT1 ||
         tcp->state == TCP_FIN_WAIT2;
}

/* tcp_options.c */
/* Reads options into the segment; false: malformed, what came before counts. */
bool tcp_options_parse(struct harp_segment *segment, const uint8_t *options, uint32_t length);
uint32_t tcp_options_syn(const struct harp_tcp *tcp, uint8_t *out, bool with_ack);
/* Timestamp, and SACK blocks if asked for. */
uint32_t tcp_options_write(struct harp_tcp *tcp, uint8_t *out, bool with_sack);
/* The timestamp (RFC 7323) of a segment that is sent now, or was at a time, ns. */
uint32_t tcp_timestamp(const struct harp_tcp *tcp);
uint32_t tcp_timestamp_at(const struct harp_tcp *tcp, uint64_t time);

/* tcp_input.c */
void tcp_input(struct harp_stack *stack, struct harp_segment *segment);
/* When to acknowledge payload that has arrived, segment_size bytes in each of its
 * segments if it is merged ones, else 0; pushed: with the PSH flag; at_once: it was out of order.
 */
void tcp_schedule_ack(struct harp_tcp *tcp, uint32_t length, uint32_t segment_size, bool pushed,
                      bool at_once);

/* Sends what that has made due at once, to others than HARP hosts: RFC 5681, 4.2, asks for one for
 * every second segment, and of one for a whole burst a small window's sender may never hear. */
void tcp_ack_non_harp_peer(struct harp_tcp *tcp);

/* tcp_predict.c */
/* Takes a frame if it is what was to be expected; false: nothing has happened. */
bool tcp_predicted(struct harp_stack *stack, const struct harp_rx_frame *frame);

/* tcp_ack.c */
/* Takes an acknowledgement that is within what was sent. */
void tcp_ack(struct harp_tcp *tcp, const struct harp_segment *segment);
void tcp_update_window(struct harp_tcp *tcp, const struct harp_segment *segment);
void tcp_rtt_sample(struct harp_tcp *tcp, uint64_t rtt_ns);
/* The timeout that the round trips measured so far call for, within its bounds. */
void tcp_set_rto(struct harp_tcp *tcp);
struct harp_ack_result;
/* The stretch of a record up to end, in flight or lost, has arrived: the books and the result. */
void tcp_delivered(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end,
                   struct harp_ack_result *result);

/* tcp_sack.c */
/* Takes the blocks of an acknowledgement that the records have been told of. */
void tcp_sack_input(struct harp_tcp *tcp, const struct harp_segment *segment,
                    struct harp_ack_result *result);
/* The peer took back what it had sacked (RFC 2018, 8): all of it is in flight. */
void tcp_sack_forget(struct harp_tcp *tcp);

/* tcp_recovery.c */
/* What one acknowledgement has told. */
struct harp_ack_result {
  uint32_t delivered; /* bytes newly acknowledged, cumulatively or selectively */
  uint32_t una_before;
  uint32_t dsack;     /* bytes reported as received twice, */
  uint32_t dsack_end; /* and the end of that block */
  uint64_t rtt;       /* ns, of the newest record that was sent only once (Karn); 0: none */
  bool was_limited;   /* the congestion window was in full use */
  uint64_t late;      /* ns that something came after what was sent behind it; 0: nothing did */
  bool copies;        /* some of it had been sent again: the rest may have come long ago */
  bool original;      /* what was given up as lost arrived, sent only once */
  bool first_copy;    /* by its timestamp: what was sent again arrived as it was sent first */
  bool timed;         /* there is an echo: it advances, with a timestamp */
  uint32_t echo;      /* of the segment that filled the hole at its head */
  bool duplicate;     /* a duplicate acknowledgement, without SACK */
};
/* The stretch of a record up to end has arrived. */
void tcp_rack_delivered(struct harp_tcp *tcp, const struct harp_record *record, uint32_t end);
void tcp_recovery_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result);
void tcp_recovery_on_rto(struct harp_tcp *tcp);
void tcp_recovery_on_loss_timer(struct harp_tcp *tcp);
void tcp_mark_lost(struct harp_tcp *tcp, struct harp_record *record);
void tcp_arm_tail_probe(struct harp_tcp *tcp);

/* tcp_prr.c */
/* Fast recovery begins, by this acknowledgement, or by a timer, with an empty result. */
void tcp_prr_begin(struct harp_tcp *tcp, const struct harp_ack_result *result);
/* Sets the congestion window in fast recovery. safe: it advances, and shows no further loss. */
void tcp_prr_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result, bool safe);

/* tcp_rack_reorder.c */
/* How long, ns, what was sent before something that has arrived may take longer than that. */
uint64_t tcp_rack_reo_wnd(const struct harp_tcp *tcp);
/* What was sent once has arrived: how long after its turn, ns; 0: in order. */
uint64_t tcp_rack_late(const struct harp_tcp *tcp, const struct harp_record *record);
/* Something has come so late, ns. */
void tcp_rack_reordering_seen(struct harp_tcp *tcp, uint64_t late);
/* The original of the first record, which was sent again, fills the hole at snd_una. */
void tcp_rack_original_acked_after_retransmit(struct harp_tcp *tcp);
/* A DSACK tells that a copy was needless. */
void tcp_rack_dsack_reported(struct harp_tcp *tcp);
/* A recovery has ended: what was learned is forgotten by and by. */
void tcp_rack_recovered(struct harp_tcp *tcp);

/* tcp_rcvq.c */
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

/* tcp_ooo.c */
/* By sequence: 0 is the first run; NULL: there are not so many. */
struct tcp_ooo_block *tcp_ooo_block_at(const struct harp_tcp *tcp, uint32_t index);
/* How many runs begin at seq or before. */
uint32_t tcp_ooo_blocks_before(const struct harp_tcp *tcp, uint32_t seq);
/* An empty run at seq, before the one that is index-th now, the newest by time; keep: packets to
 * leave in the pool. NULL: too many, or no memory. */
struct tcp_ooo_block *tcp_ooo_insert(struct harp_tcp *tcp, uint32_t index, uint32_t seq,
                                     uint32_t keep);
/* It has grown, and is the newest. */
void tcp_ooo_touch(struct harp_tcp *tcp, const struct tcp_ooo_block *run);
/* Its packets are the caller's. With the last run its table goes. */
void tcp_ooo_remove(struct harp_tcp *tcp, uint32_t index);
/* By when they last grew; NULL: none. */
const struct tcp_ooo_block *tcp_ooo_newest(const struct harp_tcp *tcp);
const struct tcp_ooo_block *tcp_ooo_older(const struct harp_tcp *tcp,
                                          const struct tcp_ooo_block *run);

/* tcp_sndq.c */
int tcp_sndq_push(struct harp_tcp *tcp, const void *data, uint32_t length,
                  struct harp_packet *packet);
/* The last reference's memory has grown by length bytes. */
void tcp_sndq_extend(struct harp_tcp *tcp, uint32_t length);
void tcp_sndq_release(struct harp_tcp *tcp, uint32_t una);
void tcp_sndq_clear(struct harp_tcp *tcp);
/* The gather list of [seq, seq + length); returns entries used, and in *covered
 * how many bytes they hold: fewer when max was too small for all, or where a
 * segment is to end. */
int tcp_sndq_gather(const struct harp_reference *reference, uint32_t seq, uint32_t length,
                    struct iovec *iov, int max, uint32_t *covered);
struct harp_reference *tcp_sndq_seek(struct harp_reference *reference, uint32_t seq);
struct harp_record *tcp_record_append(struct harp_tcp *tcp, uint32_t seq, uint32_t end,
                                      struct harp_reference *reference, bool fin);
/* Cuts a record that is not sacked in two at seq, which lies within; NULL: no memory. Returns
 * the right part. */
struct harp_record *tcp_record_split(struct harp_tcp *tcp, struct harp_record *record,
                                     uint32_t seq);
/* ns since it was sent. */
uint64_t tcp_record_age(const struct harp_tcp *tcp, const struct harp_record *record);
void tcp_record_free(struct harp_tcp *tcp, struct harp_record *record);
/* It was sent now: sets when, and links it into the order of time. RACK goes by who was sent before
 * whom, and at the same time by sequence (RFC 8985, 6.2); a copy is therefore at least a nanosecond
 * later than the newest in flight, be that ahead of the clock. */
void tcp_record_sent(struct harp_tcp *tcp, struct harp_record *record);
/* Links a record into the order of time, as the newest. */
void tcp_record_in_flight(struct harp_tcp *tcp, struct harp_record *record);
/* Takes it out of the order of time, the queue of the lost or the runs. */
void tcp_record_unlink(struct harp_tcp *tcp, struct harp_record *record);
void tcp_record_queue_lost(struct harp_tcp *tcp, struct harp_record *record);
/* Links a record into the runs behind another; NULL: as the first. */
void tcp_record_link_sacked(struct harp_tcp *tcp, struct harp_record *record,
                            struct harp_record *run);

/* tcp_output.c */
void tcp_output(struct harp_tcp *tcp);
void tcp_send_ack(struct harp_tcp *tcp);
/* SYN or SYN-ACK, and its timer. */
void tcp_send_syn(struct harp_tcp *tcp);
/* Without the timer. */
void tcp_send_syn_once(struct harp_tcp *tcp);
/* Settles what the SYN offers: the MSS, and a scale so small that rcvbuf can be told in its
 * units. */
void tcp_commit_offer(struct harp_tcp *tcp);
void tcp_send_reset(struct harp_tcp *tcp);
/* One segment outside of the window rules: seq one below snd_una, no payload. false: the port
 * is full, nobody was asked. */
bool tcp_send_probe(struct harp_tcp *tcp);
/* A zero-window probe: the next byte, as a record (RFC 9293, 3.8.6.1). false: the port is full. */
bool tcp_send_window_probe(struct harp_tcp *tcp);
/* A tail probe of new data, beyond the congestion window, as a record. false: there is none that
 * the peer has room for, or the port is full; the owner, asked for some, may have closed. */
bool tcp_send_new_probe(struct harp_tcp *tcp);
/* Sends up to limit bytes of a record again; cuts the record there. false: the
 * port is full. */
bool tcp_retransmit(struct harp_tcp *tcp, struct harp_record *record, uint32_t limit);
/* Whether an unauthenticated peer may be sent a reset now. It is a service to whoever is mistaken;
 * a flood must not be answered by one of resets. */
bool tcp_may_reset(struct harp_stack *stack);
/* The answer to a segment for which there is no connection (RFC 9293, 3.10.7.1). */
void tcp_reply_reset(struct harp_stack *stack, const struct harp_segment *segment);

/* tcp_timer.c */
void tcp_timer_set(struct harp_tcp *tcp, enum harp_timer timer, uint64_t when);
void tcp_timers_run(struct harp_stack *stack);
uint64_t tcp_timers_next(struct harp_stack *stack);
void tcp_timers_remove(struct harp_tcp *tcp);
void tcp_arm_rto(struct harp_tcp *tcp);
/* The host did not run for so many ns: that was no silence of any peer's. */
void tcp_account_pause(struct harp_stack *stack, uint64_t pause);

/* tcp_conn.c */
/* ports: the remote one in the upper half, as they lie in a received header. */
static inline uint64_t tcp_key(uint32_t remote_address, uint32_t ports)
{
  return (uint64_t)remote_address << 32 | ports;
}
struct harp_tcp *tcp_lookup(struct harp_stack *stack, uint32_t remote_address, uint16_t remote_port,
                            uint16_t local_port);
struct harp_listener *tcp_listener(struct harp_stack *stack, uint16_t port);
/* Whether its owner takes no more connections for now: a peer's SYN or the last segment of its
 * handshake is dropped then, and counted, as Linux does. The peer tries again. */
bool tcp_listener_full(struct harp_listener *listener);
/* Returns the connection that the segment belongs to, if it is one that acknowledges a cookie. */
struct harp_tcp *tcp_listen_input(struct harp_listener *listener,
                                  const struct harp_segment *segment);
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
void tcp_mark_dirty(struct harp_tcp *tcp);
/* Nobody answers for this neighbour: attempts to open through it end, and it may be gone then. */
void tcp_neighbour_failed(struct harp_neighbour *neighbour);
/* A free local port for this peer (RFC 6056, 3.3.3); 0: none. */
uint16_t tcp_choose_port(struct harp_stack *stack, struct harp_endpoint peer);

/* tcp_cookie.c */
enum tcp_cookie {
  COOKIE_NONE,    /* no cookie of the listener's is out */
  COOKIE_REFUSED, /* some are, but this is none that holds: it may be a later segment of one that
                   * was given a cookie, so it gets no reset */
  COOKIE_TAKEN,
};
/* Answers a SYN by a cookie, at most so many a second. */
void tcp_cookie_send(struct harp_listener *listener, const struct harp_segment *syn);
/* From now on, for one to two periods of 69 s, an acknowledgement without a connection may be of a
 * handshake that this listener has answered and forgotten: it is not reset. */
void tcp_cookie_expect(struct harp_listener *listener);
/* Gives a connection what the cookie says that an acknowledgement brings. *tcp: the handshake
 * under way between the same ports; NULL: a connection is made, in state CLOSE. */
enum tcp_cookie tcp_cookie_take(struct harp_listener *listener, const struct harp_segment *segment,
                                struct harp_tcp **tcp);

#endif
