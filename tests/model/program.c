/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program's text: settings, then steps, each after a semicolon. Sides are 0 and 1, times are us.
 *
 *   flows=2 instances=2,1 nics=2,2 seed=7 ...
 *   preempt=1: instances also poll in the middle of each other's polls, as threads do
 *   open LINE SIDE          SIDE connects, to send; the other side accepts
 *   send LINE SIZE          when the link is open and has a free slot
 *   recv LINE COUNT         COUNT more messages
 *   time US                 lets time pass
 *   close LINE ROLE         0: the sender, 1: the receiver; after all requests are done
 *   drop LINE ROLE          closes at once
 *   abandon LINE            connect is not called again, unless it has returned a link
 *   pause SIDE US           pauses the process; away: its caller; hold SIDE QUEUE US: a worker
 *   down SIDE NIC US        the NIC fails: it loses all frames, and its process is told;
 *                           unplug: without a carrier; silence: with a carrier
 *   blackhole LINE FLOW BITS  drops frames of its connection: those of side 0 (1), of side 1 (2)
 *   reset LINE FLOW SIDE    resets its connection at one side
 *   watch BIT               1: polls are told to a tracer from now on, with what instances share
 *   end SIDE                ends the process in order, after all is closed
 *   kill SIDE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/stack/bytes.h"
#include "tests/model/links.h"

enum { NUMBERS = 3 };
#define ABANDONED (3 * TIMEOUT_NS) /* a caller of connect that returns is away for less time */

static uint64_t read_number(char **at)
{
  *at += strspn(*at, " =,");
  return strtoull(*at, at, 10);
}

static bool read_setting(const char *name, char **at, struct settings *settings)
{
  uint64_t value = read_number(at);
  if (strcmp(name, "flows") == 0) {
    settings->flows = (unsigned)value;
  } else if (strcmp(name, "instances") == 0) {
    settings->instances[0] = (unsigned)value;
    settings->instances[1] = (unsigned)read_number(at);
  } else if (strcmp(name, "nics") == 0) {
    settings->nics[0] = (unsigned)value;
    settings->nics[1] = (unsigned)read_number(at);
  } else if (strcmp(name, "stripe") == 0) {
    settings->stripe = value;
  } else if (strcmp(name, "checksum") == 0) {
    settings->checksum = value;
  } else if (strcmp(name, "callers_poll") == 0) {
    settings->callers_poll = value;
  } else if (strcmp(name, "tso") == 0) {
    settings->tso = value;
  } else if (strcmp(name, "scatter") == 0) {
    settings->scatter = value;
  } else if (strcmp(name, "preempt") == 0) {
    settings->preempt = value;
  } else if (strcmp(name, "kernel") == 0) {
    settings->kernel = value;
  } else if (strcmp(name, "delay") == 0) {
    settings->delay_us = value;
  } else if (strcmp(name, "rate") == 0) {
    settings->rate_mbps = value;
  } else if (strcmp(name, "chunk") == 0) {
    settings->chunk = (uint32_t)value;
  } else if (strcmp(name, "loss") == 0) {
    settings->loss = value;
  } else if (strcmp(name, "seed") == 0) {
    settings->seed = value;
  } else {
    return false;
  }
  return true;
}

static bool read_settings(char *text, struct settings *settings)
{
  bool good = true;
  *settings = (struct settings){
      .flows = 1, .instances = {1, 1}, .nics = {1, 1}, .delay_us = 50, .chunk = CHUNK_SIZE};
  for (char *at = text + strspn(text, " "); *at && good; at += strspn(at, " ")) {
    char *name = at;
    at += strcspn(at, "=");
    if (*at) {
      *at++ = '\0';
    }
    good = read_setting(name, &at, settings);
  }
  for (unsigned i = 0; i < SIDES; i++) {
    good &= settings->instances[i] - 1 < HOST_INSTANCES && settings->nics[i] - 1 < HOST_NICS;
  }
  return good && settings->flows - 1 < 4;
}

/* --- Steps --- */

static void step_open(struct line *line, const uint64_t *numbers)
{
  unsigned from = numbers[1] % SIDES;
  const struct side *receiver = &world.sides[!from], *sender = &world.sides[from];
  bool lives = !sender->gone && !receiver->gone && !sender->wants_end && !receiver->wants_end;
  if (!line->used && lives && receiver->paused_until <= world.now) {
    line_open(line, from);
  }
}

static void step_send(struct line *line, const uint64_t *numbers)
{
  if (line->used && !line->roles[SENDER].wants_close && line->count < MESSAGES) {
    line->sizes[line->count++] = numbers[1] % (MESSAGE_MAX + 1);
  }
}

static void step_receive(struct line *line, const uint64_t *numbers)
{
  struct role *role = &line->roles[RECEIVER];
  if (line->used && !role->wants_close) {
    role->wanted = (unsigned)HARP_MIN(role->wanted + numbers[1], MESSAGES);
  }
}

static void step_close(struct line *line, const uint64_t *numbers)
{
  line->roles[numbers[1] % ROLES].wants_close = line->used;
}

static void step_drop(struct line *line, const uint64_t *numbers)
{
  struct role *role = &line->roles[numbers[1] % ROLES];
  if (role->state == ROLE_OPEN || role->state == ROLE_FAILED) {
    role->wants_drop = role->wants_close = true;
  }
}

static void step_abandon(struct line *line, const uint64_t *numbers)
{
  struct role *role = &line->roles[SENDER];
  if (role->state == ROLE_OPENING) {
    role->abandoned = true;
    line_excuse(line, "a rank abandoned it");
  }
}

static void step_blackhole(struct line *line, const uint64_t *numbers)
{
  bool open = line->roles[SENDER].state == ROLE_OPEN && line->roles[RECEIVER].state == ROLE_OPEN;
  if (wire_blackhole(line, (unsigned)numbers[1], 1 + numbers[2] % 3)) {
    line->blackholed = true;
    world_disturb(TIMEOUT_NS / 2, "too much was blackholed");
    if (!open) {
      line_excuse(line, "it was blackholed before it was open, or when an end was closed");
    }
  }
}

static void step_reset(struct line *line, const uint64_t *numbers)
{
  if (wire_reset(line, (unsigned)numbers[1], numbers[2] % SIDES)) {
    line_excuse(line, "it was reset");
  }
}

static const struct {
  const char *name;
  void (*run)(struct line *line, const uint64_t *numbers);
} line_steps[] = {
    {"open", step_open},           {"send", step_send},   {"recv", step_receive},
    {"close", step_close},         {"drop", step_drop},   {"abandon", step_abandon},
    {"blackhole", step_blackhole}, {"reset", step_reset},
};

static void end_soon(unsigned number)
{
  world.sides[number].wants_end = true;
  for (unsigned i = 0; i < LINES; i++) {
    for (unsigned kind = 0; kind < ROLES && world.lines[i].used; kind++) {
      struct role *role = &world.lines[i].roles[kind];
      role->wants_close |= role_side(&world.lines[i], kind) == number;
    }
  }
}

/* At the beginning, prints the requests of each link: all instances of a link write to them. */
static void watch(bool on)
{
  world.watching = on;
  if (!on) {
    puts("watched");
  }
  for (unsigned i = 0; i < LINES && on; i++) {
    for (unsigned kind = 0; kind < ROLES && world.lines[i].used; kind++) {
      const struct net_link *link = world.lines[i].roles[kind].link;
      if (link) {
        printf("requests %p %zu\n", (const void *)link->requests, sizeof link->requests);
      }
    }
  }
}

/* OUTAGES: it is no name of an outage. */
static enum outage outage_of(const char *name)
{
  static const char *const names[OUTAGES] = {
      [OUTAGE_DOWN] = "down", [OUTAGE_UNPLUGGED] = "unplug", [OUTAGE_SILENT] = "silence"};
  unsigned outage = 0;
  while (outage < OUTAGES && strcmp(name, names[outage]) != 0) {
    outage++;
  }
  return outage;
}

static bool side_step(const char *name, const uint64_t *numbers)
{
  unsigned number = numbers[0] % SIDES;
  struct side *side = &world.sides[number];
  uint64_t ns = numbers[1] * 1000;
  if (strcmp(name, "pause") == 0) {
    side->paused_until = HARP_MAX(side->paused_until, world.now) + ns;
    world_disturb(ns, "a process paused for too long");
  } else if (strcmp(name, "away") == 0) {
    if (side->away_until <= world.now) {
      side->away_since = side->away_until = world.now;
    }
    side->away_until += ns;
    if (side->away_until > side->away_since + ABANDONED) {
      excuse_opening("its caller was away for so long that it seems to have given up");
    }
  } else if (strcmp(name, "hold") == 0) {
    uint64_t *until = &side->held_until[numbers[1] % side_queues(side)];
    *until = HARP_MAX(*until, world.now) + numbers[2] * 1000;
    world_disturb(numbers[2] * 1000, "a worker was held for too long");
  } else if (outage_of(name) < OUTAGES) {
    nic_goes_off(side, (unsigned)numbers[1] % side->setup.nics, outage_of(name), numbers[2] * 1000);
  } else if (strcmp(name, "time") == 0) {
    world_run(world.now + numbers[0] * 1000);
  } else if (strcmp(name, "watch") == 0) {
    watch(numbers[0]);
  } else if (side->gone) {
    return true;
  } else if (strcmp(name, "end") == 0) {
    end_soon(number);
  } else if (strcmp(name, "kill") == 0) {
    rank_killed(number);
  } else {
    return false;
  }
  return true;
}

static bool run_step(char *text)
{
  uint64_t numbers[NUMBERS];
  char *at = text + strspn(text, " "), *name = at;
  if (!*at) {
    return true;
  }
  tell("-- %s", at);
  at += strcspn(at, " ");
  if (*at) {
    *at++ = '\0';
  }
  for (int i = 0; i < NUMBERS; i++) {
    numbers[i] = read_number(&at);
  }
  for (size_t i = 0; i < sizeof line_steps / sizeof *line_steps; i++) {
    if (strcmp(name, line_steps[i].name) == 0) {
      line_steps[i].run(&world.lines[numbers[0] % LINES], numbers);
      return true;
    }
  }
  return side_step(name, numbers);
}

bool program_run(char *text)
{
  struct settings settings;
  char *rest, *step = strtok_r(text, ";", &rest);
  if (!step || !read_settings(step, &settings)) {
    return false;
  }
  world_open(&settings);
  while ((step = strtok_r(NULL, ";", &rest))) {
    if (!run_step(step)) {
      return false;
    }
    world_kick();
  }
  program_ends();
  world_close();
  return true;
}
