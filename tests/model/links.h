/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes with links between them, on a virtual wire and in virtual time, and the model of
 * their duties: queues of messages. A program is a list of the ranks' requests and of disturbances
 * (program.c has the syntax).
 *
 *   process.c  a process: the plugin and its instances, without threads
 *   wire.c     frames between the two, with the fault port's delay and loss; reset connections
 *   nics.c     outages of NICs
 *   world.c    time: the order of polls and calls, and pauses
 *   rank.c     a rank's calls, like NCCL's, and their required results
 *   end.c      conditions at the end of a program
 *   program.c  a program's text
 *   main.c     reads programs, one per line
 *
 * Unless it is excused, each of these is a violation: an error of any call, a line of warning, a
 * wait that does not end, and any object that remains after all is closed.
 */
#ifndef HARP_TESTS_MODEL_LINKS_H
#define HARP_TESTS_MODEL_LINKS_H

#include "dpdk_glue/fault/fault_lane.h"
#include "tests/model/process.h"
#include "tests/sim/random.h"

enum {
  SIDES = 2,
  LINES = 3,
  MESSAGES = 160,      /* per line */
  MESSAGE_MAX = 60000, /* bytes */
  GUARD = 32,          /* guard bytes after a buffer */
  CHUNK_SIZE = 3000,   /* bytes, by default; the messages here are small */
  TIMEOUT_MS = 4000,
};
#define TIMEOUT_NS (TIMEOUT_MS * 1000000ull)
/* The part of its timeout that a link must tolerate, like 50 s of 60 s. A lost probe of an idle
 * peer costs a sixth. */
#define BORNE (TIMEOUT_NS / 6 * (world.settings.loss ? 4 : 5))

enum role_kind { SENDER, RECEIVER, ROLES };

enum role_state {
  ROLE_NONE,
  ROLE_OPENING, /* calls connect or accept repeatedly */
  ROLE_OPEN,
  ROLE_FAILED, /* a call has returned an error; the link may still be open */
  ROLE_CLOSED,
};

struct post {
  struct net_request *request; /* NULL: ended */
  uint8_t *data;               /* NULL: returned to the rank */
  size_t size;
  uint64_t since; /* ns */
};

/* One rank's end of a line. */
struct role {
  enum role_state state;
  struct net_link *link;
  bool was_open;
  bool abandoned;     /* connect is not called again */
  bool wants_close;   /* close after all requested messages are done */
  bool wants_drop;    /* close at once */
  uint64_t closed_at; /* ns */
  unsigned wanted, posted, done;
  uint64_t last_done; /* ns */
  struct post posts[LINK_REQUESTS];
};

/* An NCCL connection: messages in one direction. */
struct line {
  unsigned number, from; /* from: the sender's side */
  bool used;
  uint8_t handle[NET_HANDLE_SIZE];
  struct net_listener *listener;
  bool has_incoming;  /* a link arrived that was not accepted */
  bool blackholed;    /* one of its connections is blackholed */
  const char *excuse; /* reason why an error is no violation; NULL: it is one */
  size_t sizes[MESSAGES];
  unsigned count;
  struct role roles[ROLES];
};

struct side {
  const struct process_api *api;
  struct host *host;
  struct host_setup setup;
  bool gone;                         /* the process has ended */
  bool busy;                         /* in a call that sleeps */
  unsigned polling;                  /* the queues that are polled now, a bit each */
  bool wants_end;                    /* end the process after all its roles are closed */
  uint64_t paused_until, away_until; /* ns: pauses of the process and of its caller */
  uint64_t away_since;               /* ns: the begin of the caller's last pause */
  uint64_t poll_at[HOST_QUEUES], held_until[HOST_QUEUES];
  uint64_t call_at, thread_at;
  uint64_t off_until[HOST_NICS]; /* ns: the frames of a NIC are lost until then */
  bool warns_of_nics;            /* an outage deserves a warning */
};

struct settings {
  unsigned flows, instances[SIDES], nics[SIDES];
  bool checksum, callers_poll, tso, scatter, stripe, /* links are spread over NICs */
      preempt,                        /* instances poll in the middle of others' polls */
      kernel;                         /* kernel: resets segments to an ended process */
  uint64_t delay_us, loss, rate_mbps; /* loss: per 1000 frames; rate_mbps: 0: unlimited */
  uint32_t chunk;                     /* bytes */
  uint64_t seed;
};

struct tuple {
  struct harp_endpoint ends[SIDES]; /* by side */
  unsigned directions;              /* blackholed directions: a bit per sending side */
};
enum { TUPLES = 16 };

struct world {
  struct settings settings;
  struct sim_random random;
  uint64_t now, disturbed_until, silence;
  struct side sides[SIDES];
  struct line lines[LINES];
  struct fault_spec faults;       /* of each frame */
  struct fault_lane lanes[SIDES]; /* frames on their way, by receiving side */
  struct tuple tuples[TUPLES];
  unsigned tuple_count;
  uint64_t steps, frames; /* executed so far */
  bool had_outage;        /* of a NIC */
  bool over;              /* the program has ended, and warnings are ignored */
  bool watching;
  /* A store to the first one: no instance polls from now on. To another one: this instance does.
   * tests/model/writes.py sees the stores. */
  volatile uint8_t phases[1 + SIDES * HOST_QUEUES];
  unsigned phase;
};
extern struct world world;

/* Prints the violation and its time, and exits. */
__attribute__((format(printf, 1, 2))) _Noreturn void wrong(const char *format, ...);
/* Prints a line if the run is verbose. */
__attribute__((format(printf, 1, 2))) void tell(const char *format, ...);

/* --- wire.c --- */
extern const struct process_calls side_calls[SIDES];
void wire_open(void);
/* Returns the time when the next frame arrives; UINT64_MAX: none is on its way. */
uint64_t wire_next(void);
/* Delivers the next frame, whose time has come. */
void wire_deliver(void);
/* Drops all later frames of a flow's current connection. directions: bits by sending side. */
bool wire_blackhole(const struct line *line, unsigned flow, unsigned directions);
/* Sends a forged reset for a flow's connection to one side. */
bool wire_reset(const struct line *line, unsigned flow, unsigned side);
void wire_clear(void);

/* --- nics.c --- */
enum outage {
  OUTAGE_DOWN,      /* the device reports it at once */
  OUTAGE_UNPLUGGED, /* the process asks for the carrier */
  OUTAGE_SILENT,    /* the process is not told */
  OUTAGES,
};
/* Begins an outage of ns. */
void nic_goes_off(struct side *side, unsigned nic, enum outage outage, uint64_t ns);
/* Returns the NIC with the address (network order), or setup.nics: none has it. */
unsigned nic_of_address(const struct side *side, uint32_t address);
/* Returns the time when all NICs work, ns; cut_off: when a pair of NICs works. */
uint64_t nics_off_until(void);
uint64_t nics_cut_off_until(void);
static inline bool nics_are_off(void) { return nics_off_until() > world.now; }
/* ns: a longer disturbance with an outage may fail a link that is not open: its flows do not move
 * yet, and a SYN that is sent again waits for a second. */
#define OPENING_NS (TIMEOUT_NS / 4)

/* --- world.c --- */
void world_open(const struct settings *settings);
void world_close(void);
void world_run(uint64_t until);
/* Advances to a time when no rank waits: only due timers and frames run. */
void world_skip(uint64_t to);
/* Makes both ranks check their requests soon. */
void world_kick(void);
/* Runs until condition() is true. Returns false if it was not before `until`. */
bool world_run_until(bool (*condition)(void), uint64_t until);
/* Records that a side is silent for ns. */
void world_disturb(uint64_t ns, const char *what);
/* Returns true if a disturbance is or was recently so long that a link may fail to open. */
bool world_is_disturbed(void);
/* Tells which instance polls, if the world is watched; 0: none. Returns the one before. */
unsigned world_phase(unsigned phase);
/* Returns the time when all pauses and outages have ended. */
uint64_t world_paused_until(void);
/* Ends the side's process, which may sleep meanwhile. */
void side_ends(struct side *side);
void side_says(unsigned side, bool warning, const char *text);
/* Runs the side's new thread soon. */
void side_starts_thread(unsigned side);
/* Polls the instances of a NIC soon. */
void side_polls_soon(struct side *side, unsigned nic);
/* Lets another instance of the side poll now, if the program wants that. */
void side_preempts(unsigned side);

/* --- rank.c --- */
void line_open(struct line *line, unsigned from);
/* Makes all calls of a side's rank that are due now. */
void rank_calls(unsigned side);
void close_listeners(unsigned side);
void line_excuse(struct line *line, const char *why);
void excuse_all(const char *why);
/* Excuses the lines with an end that was closed long before the end of the outages, or with a
 * receiver whose last acknowledgements may be lost. */
void excuse_closing(void);
/* Excuses the lines that are not open yet. */
void excuse_opening(const char *why);
/* Returns true if a warning may have a reason. */
bool anything_excused(void);
unsigned role_open_posts(const struct role *role);
static inline unsigned role_side(const struct line *line, unsigned kind)
{
  return kind == SENDER ? line->from : !line->from;
}
static inline unsigned side_queues(const struct side *side)
{
  return side->setup.nics * side->setup.instances;
}
/* The queue belongs to a NIC that has started. */
static inline bool side_has_queue(const struct side *side, unsigned queue)
{
  return !side->gone && queue < side_queues(side) && side->api->instance(queue);
}
void rank_connects_nowhere(unsigned side);
/* The rank is gone: none of its calls matters any more. */
void rank_killed(unsigned side);

/* --- end.c --- */
void program_ends(void);

/* --- program.c --- */
/* Returns false if the text is not a program. */
bool program_run(char *text);

#endif
