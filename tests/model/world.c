/* SPDX-License-Identifier: Apache-2.0 */
/* Time: the next event on either side. */
#include <string.h>

#include "harp/stack/bytes.h"
#include "tests/model/links.h"

enum {
  WAKES_NS = 20000,    /* longest time until a worker or caller starts pending work */
  STARTS_NS = 5000000, /* longest time until a thread runs */
  DOWN_NS = 1000000,   /* time between polls of a device that is down */
  STEPS_MAX = 4000000,
};
#define NEVER UINT64_MAX

struct world world;

static uint64_t soon(void) { return world.now + 1 + random_below(&world.random, WAKES_NS); }

/* --- Sides --- */

void side_says(unsigned side, bool warning, const char *text)
{
  tell("%c says%s: %s", 'a' + (char)side, warning ? " WARN" : "", text);
  bool of_nic = world.sides[side].warns_of_nics && strstr(text, "HARP: the device nic");
  if (warning && !of_nic && !world.over && !anything_excused()) {
    wrong("%c warns although nothing was wrong: %s", 'a' + (char)side, text);
  }
}

static void open_side(unsigned number)
{
  struct side *side = &world.sides[number];
  const struct settings *settings = &world.settings;
  side->setup = (struct host_setup){
      .address = number ? HOST_PEER : HOST_ADDRESS,
      .nics = settings->nics[number],
      .instances = settings->instances[number],
      .stripe = settings->stripe,
      .flows = settings->flows,
      .timeout_ms = TIMEOUT_MS,
      .offloads = HARP_OFFLOAD_TX_CHECKSUM | HARP_OFFLOAD_RX_CHECKSUM |
                  (settings->tso ? HARP_OFFLOAD_TSO | HARP_OFFLOAD_LRO : 0),
      .callers_poll = settings->callers_poll,
      .max_connections = 64,
      .packets = 96,
      .rcvbuf = 32 << 10,
  };
  side->thread_at = NEVER;
  side->host = side->api->create(&side->setup, world.now, settings->seed * SIDES + number + 1,
                                 &side_calls[number]);
  side->host->transport->checksum = settings->checksum;
}

void world_open(const struct settings *settings)
{
  const struct process_api *api[SIDES] = {world.sides[0].api, world.sides[1].api};
  memset(&world, 0, sizeof world);
  world.settings = *settings;
  world.random = random_stream(settings->seed, 0);
  world.now = 1000 * NS_PER_S;
  wire_open();
  for (unsigned i = 0; i < SIDES; i++) {
    world.sides[i].api = api[i];
    open_side(i);
  }
  for (unsigned i = 0; i < LINES; i++) {
    world.lines[i].number = i;
  }
}

void side_ends(struct side *side)
{
  side->api->finalize();
  side->gone = true;
  side->api->destroy();
  side->host = NULL;
}

void world_close(void)
{
  world.over = true;
  for (unsigned i = 0; i < SIDES; i++) {
    struct side *side = &world.sides[i];
    if (side->host) {
      side_ends(side);
    }
    if (side->api->blocks() != 0) {
      wrong("%c has %ld blocks of memory left", 'a' + (char)i, side->api->blocks());
    }
  }
  wire_clear();
}

/* --- Events --- */

static void set_now(uint64_t now)
{
  world.now = now > world.now ? now : world.now + 1;
  for (unsigned i = 0; i < SIDES; i++) {
    if (world.sides[i].host) {
      world.sides[i].host->now = world.now;
    }
  }
}

static bool is_down(const struct side *side, unsigned queue)
{
  return side->host->nics[queue / side->setup.instances].down_until > world.now;
}

/* Returns the time when a queue must be polled. A device that is down takes no frame, so its
 * instance could always send. */
static uint64_t due_at(const struct side *side, unsigned queue)
{
  uint64_t due = side->api->deadline(queue);
  return is_down(side, queue) ? HARP_MAX(due, world.now + DOWN_NS) : due;
}

/* Schedules the polls of a side's instances that have work. */
static void wake(struct side *side)
{
  for (unsigned i = 0; i < side_queues(side); i++) {
    if (!side_has_queue(side, i)) {
      continue;
    }
    bool work = atomic_load(&side->api->instance(i)->posts) ||
                (side->host->queues[i].waiting_count && !is_down(side, i));
    uint64_t wakes = work && side->poll_at[i] > world.now + WAKES_NS ? soon() : NEVER;
    side->poll_at[i] = HARP_MIN(side->poll_at[i], HARP_MIN(wakes, due_at(side, i)));
  }
}

/* Not inline: a tracer knows it by its name. */
__attribute__((noinline)) unsigned world_phase(unsigned phase)
{
  unsigned before = world.phase;
  if (world.watching) {
    world.phase = phase;
    world.phases[phase] = 1;
  }
  return before;
}

static void poll(struct side *side, unsigned queue)
{
  side->polling |= 1u << queue;
  unsigned before = world_phase(1 + (unsigned)(side - world.sides) * HOST_QUEUES + queue);
  side->api->poll(queue);
  world_phase(before);
  side->polling &= ~(1u << queue);
  side->poll_at[queue] = due_at(side, queue);
  if (side->call_at == NEVER) {
    side->call_at = soon(); /* the rank checks its requests after each poll */
  }
}

void side_starts_thread(unsigned number)
{
  struct side *side = &world.sides[number];
  side->thread_at = world.now + 1 + random_below(&world.random, STARTS_NS);
}

void side_polls_soon(struct side *side, unsigned nic)
{
  for (unsigned i = 0; i < side->setup.instances; i++) {
    unsigned queue = nic * side->setup.instances + i;
    side->poll_at[queue] = HARP_MIN(side->poll_at[queue], soon());
  }
}

void side_preempts(unsigned number)
{
  struct side *side = &world.sides[number];
  for (unsigned i = 0; world.settings.preempt && side->host && i < side_queues(side); i++) {
    bool free = side_has_queue(side, i) && side->held_until[i] <= world.now &&
                !(side->polling & 1u << i);
    if (free && random_below(&world.random, 2)) {
      poll(side, i);
    }
  }
}

struct event {
  uint64_t when;
  unsigned side, queue;
  enum { EVENT_NONE, EVENT_FRAME, EVENT_POLL, EVENT_CALL, EVENT_THREAD } kind;
};

static void consider(struct event *event, uint64_t when, unsigned kind, unsigned side,
                     unsigned queue)
{
  if (when < event->when) {
    *event = (struct event){when, side, queue, kind};
  }
}

static struct event next_event(void)
{
  struct event event = {.when = NEVER};
  consider(&event, wire_next(), EVENT_FRAME, 0, 0);
  for (unsigned i = 0; i < SIDES; i++) {
    struct side *side = &world.sides[i];
    if (side->gone) {
      continue;
    }
    wake(side);
    for (unsigned j = 0; j < side_queues(side); j++) {
      uint64_t free = HARP_MAX(side->held_until[j], side->paused_until);
      if (side_has_queue(side, j)) {
        consider(&event, HARP_MAX(side->poll_at[j], free), EVENT_POLL, i, j);
      }
    }
    consider(&event, HARP_MAX(side->thread_at, side->paused_until), EVENT_THREAD, i, 0);
    if (!side->busy) {
      uint64_t free = HARP_MAX(side->away_until, side->paused_until);
      consider(&event, HARP_MAX(side->call_at, free), EVENT_CALL, i, 0);
    }
  }
  return event;
}

/* Returns false if nothing happens until then. */
static bool step(uint64_t until)
{
  struct event event = next_event();
  if (event.when > until) {
    set_now(until);
    return false;
  }
  set_now(event.when);
  if (++world.steps > STEPS_MAX) {
    wrong("it never comes to rest");
  }
  struct side *side = &world.sides[event.side];
  if (event.kind == EVENT_FRAME) {
    wire_deliver();
  } else if (event.kind == EVENT_POLL) {
    poll(side, event.queue);
  } else if (event.kind == EVENT_THREAD) {
    side->thread_at = NEVER;
    side->api->run_thread();
  } else {
    side->call_at = NEVER;
    rank_calls(event.side);
  }
  return true;
}

void world_run(uint64_t until)
{
  while (step(until)) {
  }
}

bool world_run_until(bool (*condition)(void), uint64_t until)
{
  bool more = true;
  while (!condition()) {
    if (!more) {
      return false;
    }
    more = step(until);
  }
  return true;
}

void world_skip(uint64_t to)
{
  set_now(HARP_MIN(to, wire_next()));
  while (wire_next() <= world.now) {
    wire_deliver();
  }
  for (unsigned i = 0; i < SIDES; i++) {
    for (unsigned j = 0; j < HOST_QUEUES; j++) {
      if (side_has_queue(&world.sides[i], j)) {
        world.sides[i].api->poll(j);
      }
    }
  }
}

void world_kick(void)
{
  for (unsigned i = 0; i < SIDES; i++) {
    world.sides[i].call_at = HARP_MIN(world.sides[i].call_at, soon());
  }
}

/* --- Disturbances --- */

/* Returns true if the disturbances may fail a link that is not open. */
static bool handshakes_take_long(void)
{
  return world.settings.loss || (world.had_outage && world.silence > OPENING_NS);
}

void world_disturb(uint64_t ns, const char *what)
{
  if (world.now > world.disturbed_until + TIMEOUT_NS) {
    world.silence = 0;
  }
  world.silence += ns;
  world.disturbed_until = HARP_MAX(world.disturbed_until, world.now) + ns;
  if (world.silence > BORNE) {
    excuse_all(what);
  } else if (handshakes_take_long()) {
    excuse_opening("a handshake that paused takes long to notice a loss");
  }
}

bool world_is_disturbed(void)
{
  return world.now < world.disturbed_until + TIMEOUT_NS &&
         (world.silence > BORNE || handshakes_take_long());
}

uint64_t world_paused_until(void)
{
  uint64_t until = HARP_MAX(world.now, nics_off_until());
  for (unsigned i = 0; i < SIDES; i++) {
    const struct side *side = &world.sides[i];
    until = HARP_MAX(until, HARP_MAX(side->paused_until, side->away_until));
    for (unsigned j = 0; j < HOST_QUEUES; j++) {
      until = HARP_MAX(until, side->held_until[j]);
    }
  }
  return until;
}
