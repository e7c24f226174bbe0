/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes with links between them on a virtual wire, in virtual time, and the model
 * that says what they owe each other: queues of messages. A program is what the two ranks
 * ask for and what befalls them (program.c says how it is written).
 *
 *   process.c  a process: the plugin and its instances, without threads
 *   wire.c     frames between the two: delay, loss, connections that are swallowed or reset
 *   world.c    time: who polls and who calls when; pauses
 *   rank.c     a rank's calls, as NCCL makes them, and what they must return
 *   end.c      what must hold when a program has ended
 *   program.c  a program's text
 *   main.c     reads programs, one a line
 *
 * Whatever is not excused is a violation: an error of any call, a line of warning, a wait
 * that does not end, and whatever remains when all is closed.
 */
#ifndef HARP_TESTS_MODEL_LINKS_H
#define HARP_TESTS_MODEL_LINKS_H

#include "tests/model/process.h"
#include "tests/sim/random.h"

enum {
  SIDES = 2,
  LINES = 3,
  MESSAGES = 160,      /* of a line */
  MESSAGE_MAX = 60000, /* bytes */
  GUARD = 32,          /* bytes behind a buffer */
  CHUNK_SIZE = 3000,   /* bytes: messages are small here */
  TIMEOUT_MS = 4000,
};
#define TIMEOUT_NS (TIMEOUT_MS * 1000000ull)

enum role_kind { SENDER, RECEIVER, ROLES };

enum role_state {
  ROLE_NONE,
  ROLE_OPENING, /* asks connect, or accept, again and again */
  ROLE_OPEN,
  ROLE_FAILED, /* some call has returned an error; its link may still be open */
  ROLE_CLOSED,
};

struct post {
  struct net_request *request; /* NULL: ended */
  uint8_t *data;               /* NULL: the rank has it back */
  size_t size;
  uint64_t since; /* ns */
};

/* One rank's end of a line. */
struct role {
  enum role_state state;
  struct net_link *link;
  bool was_open;
  bool abandoned;     /* it is never asked for again */
  bool wants_close;   /* once everything it wanted is done */
  bool wants_drop;    /* at once */
  uint64_t closed_at; /* ns */
  unsigned wanted, posted, done;
  uint64_t last_done; /* ns */
  struct post posts[LINK_REQUESTS];
};

/* A connection as NCCL makes it: messages one way. */
struct line {
  unsigned number, from; /* the sender's side */
  bool used;
  uint8_t handle[NET_HANDLE_SIZE];
  struct net_listener *listener;
  bool heard_of;      /* a link had come in that nobody has accepted */
  bool wounded;       /* a connection of it is swallowed */
  const char *excuse; /* why an error is no violation; NULL: it is */
  size_t sizes[MESSAGES];
  unsigned count;
  struct role roles[ROLES];
};

struct side {
  const struct process_api *api;
  struct host *host;
  struct host_setup setup;
  bool gone;                         /* the process has ended */
  bool busy;                         /* within a call that sleeps */
  bool wants_end;                    /* once all its roles are closed */
  uint64_t paused_until, away_until; /* ns: the process; its caller */
  uint64_t poll_at[HOST_INSTANCES], held_until[HOST_INSTANCES];
  uint64_t call_at;
};

struct settings {
  unsigned flows, instances[SIDES];
  bool checksum, scarce, tso, scatter, kernel; /* kernel: it resets what is for the gone */
  uint64_t delay_us, loss;                     /* loss: of 1000 frames */
  uint64_t seed;
};

struct wire_frame {
  struct wire_frame *next;
  uint64_t arrives;
  unsigned to;
  uint32_t header_length, length;
  uint16_t segment_size;
  uint8_t bytes[];
};

struct tuple {
  uint32_t address[SIDES]; /* by side */
  uint16_t port[SIDES];
  unsigned directions; /* that are swallowed: a bit for each sending side */
};
enum { TUPLES = 16 };

struct world {
  struct settings settings;
  struct sim_random random;
  uint64_t now, disturbed_until, silence;
  struct side sides[SIDES];
  struct line lines[LINES];
  struct wire_frame *wire;
  struct tuple tuples[TUPLES];
  unsigned tuple_count;
  uint64_t steps, frames; /* done so far */
  bool over;              /* warnings say nothing any more */
};
extern struct world world;

/* Says what is wrong, and when, and ends the process. */
__attribute__((format(printf, 1, 2))) _Noreturn void wrong(const char *format, ...);
/* A line of the story, if it is wanted. */
__attribute__((format(printf, 1, 2))) void tell(const char *format, ...);

/* --- wire.c --- */
extern const struct process_calls side_calls[SIDES];
/* NULL, or the next frame to arrive. */
struct wire_frame *wire_next(void);
void wire_deliver(void);
/* From now on nothing of a flow's connection passes; directions: bits by sending side. */
bool wire_swallow(const struct line *line, unsigned flow, unsigned directions);
/* Somebody resets a flow's connection at one side. */
bool wire_reset(const struct line *line, unsigned flow, unsigned side);
void wire_clear(void);

/* --- world.c --- */
void world_open(const struct settings *settings);
void world_close(void);
void world_run(uint64_t until);
/* To a time when no rank waits for anything: only what is due then happens. */
void world_skip(uint64_t to);
/* Both ranks look soon for what they were asked for. */
void world_kick(void);
/* Before `until`, as soon as condition() holds. false: it never did. */
bool world_run_until(bool (*condition)(void), uint64_t until);
/* Nothing is heard of a side for so long. */
void world_disturb(uint64_t ns, const char *what);
/* For so long, or lately, that a link need not come to be open. */
bool world_is_disturbed(void);
/* Time until which somebody pauses. */
uint64_t world_paused_until(void);
/* Its process, which takes its time. */
void side_ends(struct side *side);
void side_says(unsigned side, bool warning, const char *text);

/* --- rank.c --- */
void line_open(struct line *line, unsigned from);
/* All calls that a side's rank makes now. */
void rank_calls(unsigned side);
void close_listeners(unsigned side);
void line_excuse(struct line *line, const char *why);
void excuse_all(const char *why);
/* Lines that are not open yet. */
void excuse_opening(const char *why);
/* A warning may have a reason. */
bool anything_excused(void);
unsigned role_open_posts(const struct role *role);
static inline unsigned role_side(const struct line *line, unsigned kind)
{
  return kind == SENDER ? line->from : !line->from;
}
void rank_connects_nowhere(unsigned side);
/* The rank is gone: nothing that it holds is heard of any more. */
void rank_killed(unsigned side);

/* --- end.c --- */
void program_ends(void);

/* --- program.c --- */
/* false: it is none. */
bool program_run(char *text);

#endif
