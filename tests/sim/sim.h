/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network of many stacks in virtual time. Everything comes from one seed, so a run can be
 * repeated to the byte, however slow the machine is.
 *
 *   spec.c      a scenario's keys and values, as text
 *   draw.c      a scenario drawn from a seed
 *   event.c     the queue of events
 *   link.c      a link: rate, delay, queue, and its faults
 *   device.c    a host's NIC: cuts large segments, completes checksums, rejects frames when full
 *   host.c      a host: stack, NIC, and the times of its polls
 *   traffic.c   one connection: the data that it sends and must receive
 *   pattern.c   the connections of a scenario, and their start times
 *   watch.c     rules for frames on the wire
 *   check.c     rules for a stack after every event
 *   capture.c   frames as pcapng
 *   report.c    the result as JSON
 *
 * Times are nanoseconds of the simulation, lengths are bytes. One thread. A broken rule ends the
 * run (sim_violation). Running out of memory ends the program.
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
  SIM_PORT = 5001,   /* the servers' port */
  SIM_ETHERNET = 38, /* bytes of a frame on the wire in addition to its packet */
  SIM_MESSAGE = 512,
  SIM_PATTERN = 1048573, /* period of a stream's content, bytes; a prime */
  SIM_PUSH_MAX = 1 << 20,
};

struct sim_spec {
#define SIM_NUMBER(name, initial, low, high, meaning) uint64_t name;
#define SIM_FRACTION(name, initial, meaning) double name;
#include "tests/sim/spec_keys.def"
#undef SIM_NUMBER
#undef SIM_FRACTION
};

/* Counts of events on the frames' way, and between applications and stacks. */
struct sim_counts {
  uint64_t frames; /* sent by NICs */
  uint64_t dropped, burst_dropped, tail_dropped, queue_dropped, mtu_dropped;
  uint64_t duplicated, reordered, corrupted;
  uint64_t mtu_changes;
  uint64_t nic_full;       /* rejected by a full NIC */
  uint64_t reader_stalls;  /* a slow reader left bytes in the stack */
  uint64_t window_closed;  /* segments that advertise a zero window */
  uint64_t large_segments; /* cut by a NIC */
};

struct sim_frame {
  uint64_t order; /* order of sending */
  uint32_t length;
  uint16_t source, target; /* host numbers */
  uint8_t hop;             /* links passed after the NIC */
  bool unsummed;           /* the TCP checksum is not computed yet */
  bool late, corrupted;    /* faults of this frame */
  uint8_t data[] __attribute__((aligned(8)));
};

struct sim_link {
  uint64_t rate_mbps;
  uint64_t delay_ns;
  uint64_t queue;   /* bytes */
  uint64_t free_ps; /* time when all held frames have left, picoseconds */
  bool faulty;
  bool uneven;        /* adds a random delay of up to a frame's time, in order */
  uint64_t latest;    /* arrival of the latest frame, if uneven */
  uint64_t bad_until; /* end of the current burst of losses */
  uint64_t newest;    /* order of the latest frame that arrived */
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
  struct harp_tcp *tcp; /* NULL: not yet open, or closed */
  uint64_t size;        /* bytes to send */
  uint64_t allowed;     /* limit of the bytes to send now; a ring raises it in steps */
  uint64_t pushed, acked, received;
  /* bytes that a slow reader still takes in this interval; number of the interval */
  uint64_t budget, turn;
  uint32_t key; /* position of its stream in the pattern */
  bool established, closing, closed, stalled;
  /* State of its frames and of the frames that it received (watch.c). */
  bool shown, scaled, window_known;
  uint8_t scale;
  uint32_t edge_shown;    /* right edge of the window that it advertised */
  uint32_t edge_received; /* right edge of the window that it received */
};

struct sim_flow {
  struct sim *sim;
  uint64_t id;
  struct sim_end end[2];      /* the connecting and the listening end */
  uint64_t started, finished; /* finished: time of its latest byte */
  uint64_t at_warmup;         /* bytes that the listening end had received then */
  struct sim_flow *next;      /* ring: the flow that leaves from this flow's target */
  uint64_t step_began;
};

struct sim_host {
  struct sim *sim;
  uint16_t index;
  struct harp_stack *stack;
  struct harp_stack_config config;
  struct sim_link nic, down; /* links to and from the switch */
  struct sim_frame **inbox;  /* frames that arrived since the last poll; owned */
  uint32_t inbox_used, inbox_size;
  uint64_t wake; /* time of the next poll; SIM_NEVER: none */
  uint64_t last_poll;
  bool starved;             /* a connection found no free reference for a push */
  bool refused;             /* the NIC rejected a frame since the last poll */
  uint32_t idle_polls;      /* consecutive polls without frames in or out, but with a timer due */
  struct sim_end **by_port; /* its connecting ends, by local port; owned */
  uint32_t ends_used, ends_size;
  struct sim_end **ends; /* its open ends; owned */
};

enum sim_event_kind { EVENT_FRAME, EVENT_POLL, EVENT_START, EVENT_READ, EVENT_MTU, EVENT_WARMUP };

struct sim_event {
  uint64_t when, order; /* order of creation; it orders events of equal time */
  void *what;           /* frame, host, flow or end, depending on kind */
  enum sim_event_kind kind;
};

struct sim {
  struct sim_spec spec;
  uint64_t now;
  uint64_t order;
  struct sim_event *events; /* a binary heap */
  uint32_t event_count, event_size;
  struct sim_host *hosts;
  struct sim_link *core_up, *core_down; /* one per rack */
  struct sim_flow *flows;
  uint64_t flow_count, next_flow, done;
  uint64_t *steps; /* ring: duration of each step of each host */
  uint64_t step_count;
  bool mtu_low, over;    /* over: the time limit is reached */
  uint64_t quiet_frames; /* frames since the last progress */
  uint64_t delivered;
  uint64_t event_total;
  struct sim_random random;
  struct sim_counts counts;
  FILE *capture;
  bool failed;
  char message[SIM_MESSAGE];
};

/* Ends the run. The message names the broken rule and its place. Only the first violation
 * counts. */
void sim_violation(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The program exits if there is no memory. */
void *sim_allocate(size_t count, size_t size);
/* Runs one scenario. The result is in sim; sim_free releases it. capture: NULL or an open file
 * for the frames, owned by the caller. */
void sim_run(struct sim *sim, const struct sim_spec *spec, FILE *capture);
void sim_free(struct sim *sim);

/* spec.c */
void spec_default(struct sim_spec *spec);
/* Parses "key=value,key=value". Returns false if a word is wrong; error then names the word and
 * the allowed values. */
bool spec_parse(struct sim_spec *spec, const char *text, char error[SIM_MESSAGE]);
/* Writes only the values that differ from the default. */
void spec_write(const struct sim_spec *spec, FILE *out);
void spec_help(FILE *out);

/* draw.c */
void spec_draw(struct sim_spec *spec, uint64_t seed);
/* Changes one host's settings, if the scenario varies them. */
void spec_vary(const struct sim_spec *spec, uint16_t host, struct harp_stack_config *config);

/* event.c */
void event_add(struct sim *sim, uint64_t when, enum sim_event_kind kind, void *what);
/* Returns false if no event is left. */
bool event_take(struct sim *sim, struct sim_event *event);

/* link.c */
struct sim_frame *frame_new(struct sim *sim, uint32_t length);
/* Takes ownership of the frame and sends it, or drops it. */
void link_send(struct sim *sim, struct sim_link *link, struct sim_frame *frame);
/* A frame has reached the end of a link. Sends it on the next link, or delivers it to its host. */
void link_arrived(struct sim *sim, struct sim_frame *frame);
/* Returns the time when a link holds at most a quarter of its queue. */
uint64_t link_has_room_at(const struct sim_link *link, uint64_t now);
uint64_t link_backlog(const struct sim_link *link, uint64_t now);

/* device.c */
int device_transmit(void *host, const struct harp_tx_frame *frame);
void device_complete_checksum(struct sim_frame *frame);
/* Sends ICMP "fragmentation needed" for a frame that exceeds the MTU (RFC 1191). */
void device_refuse(struct sim *sim, const struct sim_frame *frame, uint32_t mtu);

/* host.c */
void host_create(struct sim *sim, uint16_t index);
void host_destroy(struct sim_host *host);
void host_receive(struct sim_host *host, struct sim_frame *frame);
void host_poll(struct sim_host *host);
/* Brackets calls to the host's stack: begin sets the clock, end sends the resulting frames. */
void host_begin(struct sim_host *host);
void host_end(struct sim_host *host);
void host_add_end(struct sim_host *host, struct sim_end *end);
void host_remove_end(struct sim_host *host, struct sim_end *end);
uint32_t host_address(uint16_t index); /* network order */

/* traffic.c */
void traffic_start(struct sim_flow *flow, uint16_t client, uint16_t server);
void traffic_read(struct sim_end *end);
extern const struct harp_flow_ops traffic_listener;
/* Creates the content of all streams: pattern_bytes[(key + position) % SIM_PATTERN ...]. */
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
/* Checks that every pool is full and no timer is due, after all connections have ended. */
void check_idle(struct sim_host *host);

/* capture.c */
void capture_begin(struct sim *sim);
void capture_frame(struct sim *sim, uint16_t host, struct sim_frame *frame, bool sent);

/* report.c */
void report_write(const struct sim *sim, FILE *out);

#endif
