/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network of many stacks in virtual time. Everything comes from one seed: a
 * run can be repeated to the byte, however long the machine takes for it.
 *
 *   spec.c      what a scenario is: keys and values, as text
 *   draw.c      a scenario drawn from a seed
 *   event.c     what happens next
 *   link.c      a link: rate, delay, queue, and its faults
 *   device.c    a host's NIC: cuts large segments, completes checksums, says no when it is full
 *   host.c      a host: stack, NIC, and when it is polled
 *   traffic.c   one connection: what it sends and what it must receive
 *   pattern.c   which connections there are, and when
 *   watch.c     what frames on the wire must be like
 *   check.c     what a stack must be like after every event
 *   capture.c   frames as pcapng
 *   report.c    the result as JSON
 *
 * Times are nanoseconds of the simulation, lengths bytes. One thread. A rule
 * that is broken ends the run (sim_violation); running out of memory ends the
 * program.
 */
#ifndef HARP_TESTS_SIM_SIM_H
#define HARP_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "harp/counters.h"
#include "harp/stack/flow.h"
#include "tests/sim/random.h"

#define SIM_NEVER UINT64_MAX
#define SIM_SECOND 1000000000ull

enum {
  SIM_PORT = 5001,   /* where servers listen */
  SIM_ETHERNET = 38, /* bytes that a frame takes on the wire beside its packet */
  SIM_MESSAGE = 512,
  SIM_PATTERN = 1048573, /* bytes after which a stream's content repeats: a prime */
  SIM_PUSH_MAX = 1 << 20,
};

struct sim_spec {
#define SIM_NUMBER(name, initial, low, high, meaning) uint64_t name;
#define SIM_FRACTION(name, initial, meaning) double name;
#include "tests/sim/spec_keys.def"
#undef SIM_NUMBER
#undef SIM_FRACTION
};

/* What has happened to frames, and between applications and stacks. */
struct sim_counts {
  uint64_t frames; /* sent by NICs */
  uint64_t dropped, burst_dropped, tail_dropped, queue_dropped, mtu_dropped;
  uint64_t duplicated, reordered, corrupted;
  uint64_t mtu_changes;
  uint64_t nic_full;       /* a NIC said no */
  uint64_t reader_stalls;  /* a slow reader left bytes in the stack */
  uint64_t window_closed;  /* segments that advertise no window */
  uint64_t large_segments; /* that a NIC has cut */
};

struct sim_frame {
  uint64_t order; /* of sending */
  uint32_t length;
  uint16_t source, target; /* hosts */
  uint8_t hop;             /* links passed behind the NIC */
  bool unsummed;           /* the TCP checksum is left to whoever needs it */
  bool late, spoilt;       /* faults that it met */
  uint8_t data[] __attribute__((aligned(8)));
};

struct sim_link {
  uint64_t rate_mbps;
  uint64_t delay_ns;
  uint64_t queue;   /* bytes */
  uint64_t free_ps; /* when all that it holds has left, picoseconds */
  bool faulty;
  bool uneven;        /* frames are up to a frame's time late, in order */
  uint64_t latest;    /* arrival of the last one then */
  uint64_t bad_until; /* end of the burst of losses that it is in */
  uint64_t newest;    /* order of the latest frame that arrived from it */
  struct sim_random random;
};

struct sim;
struct sim_host;
struct sim_flow;

/* One side of a connection. */
struct sim_end {
  struct sim_flow *flow;
  struct sim_end *peer;
  struct sim_host *host;
  struct harp_tcp *tcp; /* NULL: not yet, or no more */
  uint64_t size;        /* bytes that it sends */
  uint64_t allowed;     /* of these now: a ring goes by steps */
  uint64_t pushed, acked, received;
  uint64_t budget, turn; /* bytes that a slow reader takes in this stretch of time */
  uint32_t key;          /* where its stream begins in the pattern */
  bool established, closing, closed, stalled;
  /* What its frames have said, and what has come to it (watch.c). */
  bool shown, scaled, heard;
  uint8_t scale;
  uint32_t edge_shown; /* right edge of the window that it advertised */
  uint32_t edge_heard; /* right edge that it was told */
};

struct sim_flow {
  struct sim *sim;
  uint64_t id;
  struct sim_end end[2];      /* the connecting and the listening one */
  uint64_t started, finished; /* finished: its latest byte */
  uint64_t at_warmup;         /* bytes that the listening side had by then */
  struct sim_flow *next;      /* ring: the flow that leaves where this one arrives */
  uint64_t step_began;
};

struct sim_host {
  struct sim *sim;
  uint16_t index;
  struct harp_stack *stack;
  struct harp_stack_config config;
  struct sim_link nic, down; /* to the switch, from it */
  struct sim_frame **inbox;  /* what has arrived and was not polled; owned */
  uint32_t inbox_used, inbox_size;
  uint64_t wake; /* when it is polled next; SIM_NEVER */
  uint64_t last_poll;
  bool starved;             /* a connection found no references left to push with */
  bool refused;             /* the NIC said no since the last poll */
  uint32_t idle_polls;      /* in a row, with nothing in or out, yet something due */
  struct sim_end **by_port; /* its connecting ends by local port; owned */
  uint32_t ends_used, ends_size;
  struct sim_end **ends; /* its open ends; owned */
};

enum sim_event_kind { EVENT_FRAME, EVENT_POLL, EVENT_START, EVENT_READ, EVENT_MTU, EVENT_WARMUP };

struct sim_event {
  uint64_t when, order; /* order: of making, so that equal times have one, too */
  void *what;           /* frame, host, flow or end, by its kind */
  enum sim_event_kind kind;
};

struct sim {
  struct sim_spec spec;
  uint64_t now;
  uint64_t order;
  struct sim_event *events; /* a heap */
  uint32_t event_count, event_size;
  struct sim_host *hosts;
  struct sim_link *core_up, *core_down; /* of each rack */
  struct sim_flow *flows;
  uint64_t flow_count, next_flow, done;
  uint64_t *steps; /* ring: how long each step of each host took */
  uint64_t step_count;
  bool mtu_low, over;    /* over: the time is up */
  uint64_t quiet_frames; /* since anything moved */
  uint64_t delivered;
  uint64_t event_total;
  struct sim_random random;
  struct sim_counts counts;
  FILE *capture;
  bool failed;
  char message[SIM_MESSAGE];
};

/* Ends the run: what rule was broken, and where. The first one counts. */
void sim_violation(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The program ends if there is no memory. */
void *sim_allocate(size_t count, size_t size);
/* Runs one scenario; result in sim, which sim_free empties. capture: NULL or an
 * open file for the frames, which stays the caller's. */
void sim_run(struct sim *sim, const struct sim_spec *spec, FILE *capture);
void sim_free(struct sim *sim);

/* spec.c */
void spec_default(struct sim_spec *spec);
/* "key=value,key=value". false: error says which word is wrong, and what is allowed. */
bool spec_parse(struct sim_spec *spec, const char *text, char error[SIM_MESSAGE]);
/* Only what is not the default. */
void spec_write(const struct sim_spec *spec, FILE *out);
void spec_help(FILE *out);

/* draw.c */
void spec_draw(struct sim_spec *spec, uint64_t seed);
/* One host's own settings, where they vary. */
void spec_vary(const struct sim_spec *spec, uint16_t host, struct harp_stack_config *config);

/* event.c */
void event_add(struct sim *sim, uint64_t when, enum sim_event_kind kind, void *what);
/* false: nothing is left to happen. */
bool event_take(struct sim *sim, struct sim_event *event);

/* link.c */
struct sim_frame *frame_new(struct sim *sim, uint32_t length);
/* Hands the frame over; what becomes of it is the link's business. */
void link_send(struct sim *sim, struct sim_link *link, struct sim_frame *frame);
/* A frame has come to the end of a link: on to the next, or to its host. */
void link_arrived(struct sim *sim, struct sim_frame *frame);
/* When a link will hold no more than a quarter of its queue. */
uint64_t link_has_room_at(const struct sim_link *link, uint64_t now);
uint64_t link_backlog(const struct sim_link *link, uint64_t now);

/* device.c */
int device_transmit(void *host, const struct harp_tx_frame *frame);
void device_complete_checksum(struct sim_frame *frame);
/* "Fragmentation needed" for a frame that does not pass (RFC 1191). */
void device_refuse(struct sim *sim, const struct sim_frame *frame, uint32_t mtu);

/* host.c */
void host_create(struct sim *sim, uint16_t index);
void host_destroy(struct sim_host *host);
void host_receive(struct sim_host *host, struct sim_frame *frame);
void host_poll(struct sim_host *host);
/* Lets the host do something now: begin sets the clock, end sends what came of it. */
void host_begin(struct sim_host *host);
void host_end(struct sim_host *host);
void host_add_end(struct sim_host *host, struct sim_end *end);
void host_remove_end(struct sim_host *host, struct sim_end *end);
uint32_t host_address(uint16_t index); /* network order */

/* traffic.c */
void traffic_start(struct sim_flow *flow, uint16_t client, uint16_t server);
void traffic_read(struct sim_end *end);
extern const struct harp_flow_ops traffic_listener;
/* Bytes of every stream; content is pattern_bytes[(key + position) % SIM_PATTERN ...]. */
void traffic_pattern_create(void);

/* pattern.c */
void pattern_begin(struct sim *sim);
void pattern_start(struct sim_flow *flow);
void pattern_done(struct sim_flow *flow);
void pattern_delivered(struct sim_end *end, uint64_t before);

/* watch.c */
void watch_sent(struct sim *sim, const struct sim_frame *frame);
void watch_arrived(struct sim *sim, const struct sim_frame *frame);
bool watch_is_tail(const struct sim_frame *frame);

/* check.c */
void check_host(struct sim_host *host);
void check_end(struct sim_end *end);
/* All is over: every pool is full again, and nothing is due. */
void check_idle(struct sim_host *host);

/* capture.c */
void capture_begin(struct sim *sim);
void capture_frame(struct sim *sim, uint16_t host, struct sim_frame *frame, bool sent);

/* report.c */
void report_write(const struct sim *sim, FILE *out);

#endif
