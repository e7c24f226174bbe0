/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions at the end of a program: all requests end, and no object remains. */
#include "harp/stack/bytes.h"
#include "tests/model/links.h"

/* Bounds, ns. */
#define SETTLED (6 * TIMEOUT_NS)
#define REST (600 * NS_PER_S)
#define REST_STEP (5 * NS_PER_S)

static const char *waits_for; /* the unfinished request */
static const struct line *waits_line;

static bool waiting(const struct line *line, const char *what)
{
  waits_for = what;
  waits_line = line;
  return true;
}

static bool lives(const struct line *line, unsigned kind)
{
  return line->used && !world.sides[role_side(line, kind)].gone;
}

/* Returns true while the sender's requests are neither done nor failed. */
static bool sender_waits(const struct line *line)
{
  const struct role *role = &line->roles[SENDER];
  if (role->state == ROLE_OPENING && !role->abandoned) {
    return waiting(line, "connect does not end");
  }
  if (role->state == ROLE_OPEN && role->done < line->count) {
    return waiting(line, "a send does not end");
  }
  return role->state == ROLE_FAILED && role_open_posts(role) > 0 &&
         waiting(line, "a send does not end after an error");
}

static bool receiver_waits(const struct line *line)
{
  const struct role *role = &line->roles[RECEIVER], *sender = &line->roles[SENDER];
  bool never_connects = !sender->was_open && (sender->state != ROLE_OPENING || sender->abandoned);
  if (role->state == ROLE_OPENING) {
    return !(never_connects && !line->has_incoming) && waiting(line, "accept does not end");
  }
  bool over = sender->state != ROLE_OPEN;
  if (role->state == ROLE_OPEN && role->done < (over ? role->wanted : line->count)) {
    return waiting(line, over ? "a receive does not end although the sender has"
                              : "a receive does not end");
  }
  return role->state == ROLE_FAILED && role_open_posts(role) > 0 &&
         waiting(line, "a receive does not end after an error");
}

static bool settled(void)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct line *line = &world.lines[i];
    if ((lives(line, SENDER) && sender_waits(line)) ||
        (lives(line, RECEIVER) && receiver_waits(line))) {
      return false;
    }
  }
  return true;
}

static bool closed(unsigned kind)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct line *line = &world.lines[i];
    unsigned state = line->roles[kind].state;
    if (lives(line, kind) && (state == ROLE_OPEN || state == ROLE_FAILED)) {
      return !waiting(line, "an end is not closed");
    }
  }
  return true;
}

static bool senders_closed(void) { return closed(SENDER); }
static bool receivers_closed(void) { return closed(RECEIVER); }

static void demand(bool (*condition)(void), uint64_t within)
{
  world_kick();
  if (!world_run_until(condition, world.now + within)) {
    wrong("line %u: %s within %llu ms (sender: state %d, %u of %u done; receiver: state %d, %u of "
          "%u done)",
          waits_line->number, waits_for, (unsigned long long)(within / 1000000),
          waits_line->roles[SENDER].state, waits_line->roles[SENDER].done, waits_line->count,
          waits_line->roles[RECEIVER].state, waits_line->roles[RECEIVER].done,
          waits_line->roles[RECEIVER].wanted);
  }
}

static void want_all_received(void)
{
  for (unsigned i = 0; i < LINES; i++) {
    struct line *line = &world.lines[i];
    struct role *role = &line->roles[RECEIVER];
    if (!role->wants_close && role->wanted < line->count) {
      role->wanted = line->count;
    }
  }
}

static void want_closed(unsigned kind)
{
  for (unsigned i = 0; i < LINES; i++) {
    world.lines[i].roles[kind].wants_close = true;
  }
}

static void forget_abandoned(void)
{
  for (unsigned i = 0; i < LINES; i++) {
    const struct line *line = &world.lines[i];
    if (line->roles[SENDER].abandoned && lives(line, SENDER)) {
      world_run(world.now + SETTLED);
      rank_connects_nowhere(line->from);
    }
  }
}

/* --- Rest --- */

static bool at_rest(unsigned *side, const char **what)
{
  *what = NULL;
  for (unsigned i = 0; i < SIDES && !*what; i++) {
    *side = i;
    *what = world.sides[i].gone ? NULL : world.sides[i].api->in_use();
  }
  return !*what;
}

/* Waits for the instances' ticks only if another timer is due. */
static uint64_t next_rest(void)
{
  uint64_t next = world.now + REST_STEP;
  for (unsigned i = 0; i < SIDES; i++) {
    for (unsigned j = 0; j < HOST_QUEUES; j++) {
      if (side_has_queue(&world.sides[i], j)) {
        next = HARP_MIN(next, world.sides[i].api->rest_deadline(j));
      }
    }
  }
  return next;
}

static void come_to_rest(void)
{
  uint64_t limit = world.now + REST;
  const char *what;
  unsigned side;
  while (!at_rest(&side, &what)) {
    if (world.now > limit) {
      wrong("%c has %s left when all is closed", 'a' + (char)side, what);
    }
    if (world.now < limit - REST / 2) {
      world_skip(next_rest());
    } else { /* ticks run: a half-open connection does not end while gaps count as pauses */
      world_run(world.now + REST_STEP);
    }
  }
  for (unsigned i = 0; i < SIDES; i++) {
    if (!world.sides[i].gone && world.sides[i].host->transport->links) {
      wrong("%c has a link left when all is closed", 'a' + (char)i);
    }
  }
}

void program_ends(void)
{
  tell("the program has ended");
  world_run(world_paused_until());
  want_all_received();
  demand(settled, SETTLED);
  want_closed(SENDER);
  demand(senders_closed, SETTLED);
  demand(settled, SETTLED);
  want_closed(RECEIVER);
  demand(receivers_closed, SETTLED);
  for (unsigned i = 0; i < SIDES; i++) {
    if (!world.sides[i].gone) {
      close_listeners(i);
    }
  }
  forget_abandoned();
  come_to_rest();
}
