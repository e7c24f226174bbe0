/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/collectives/plan_world.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "harp/fnv1a.h"

struct links_memory {
  uint8_t bytes[LINK_STAGED * LINK_SLICE];
};

/* Stand for links.c: all that planners ask of links is staging. */
struct link *links_get(struct links *links, enum link_use use, bool sends, int peer)
{
  struct link *link = &links->all[(sends ? 0 : links->ranks) + peer];
  if (!link->staging) {
    link->staging = malloc(sizeof(struct links_memory));
  }
  return link;
}

void *link_staging(struct link *link, int slot)
{
  return link->staging + (size_t)slot * LINK_SLICE;
}

void world_init(struct world *world, int ranks, unsigned seed)
{
  *world = (struct world){.ranks = ranks, .random = seed, .lazy = -1, .asleep = -1};
  world->slow = (int)world_draw(world, (unsigned)ranks);
  for (int rank = 0; rank < ranks; rank++) {
    schedule_init(&world->schedules[rank], ranks);
    world->links[rank].ranks = ranks;
    world->links[rank].all = calloc(2 * (size_t)ranks, sizeof(struct link));
  }
}

void world_free(struct world *world)
{
  for (int rank = 0; rank < world->ranks; rank++) {
    schedule_free(&world->schedules[rank]);
    for (int i = 0; i < WORLD_LATER; i++) {
      schedule_free(&world->later[rank][i]);
    }
    free(world->windows[rank].peers);
    free(world->windows[rank].grid);
    for (int i = 0; i < 2 * world->ranks; i++) {
      free(world->links[rank].all[i].staging);
    }
    free(world->links[rank].all);
  }
}

/* Only the heads are cleared: the rest is what the world before has left there. */
static struct window memory[WORLD_MOST];

static void make_windows(struct world *world, int rank, int local)
{
  struct windows *windows = &world->windows[rank];
  int hosts = world->ranks / local;
  *windows = (struct windows){.count = local,
                              .local_rank = rank / hosts,
                              .hosts = hosts,
                              .host = rank % hosts,
                              .peers = calloc((size_t)local, sizeof *windows->peers),
                              .grid = calloc((size_t)world->ranks, sizeof *windows->grid)};
  windows->own = &memory[rank];
  memset(windows->own, 0, offsetof(struct window, operands));
  for (int peer = 0; peer < world->ranks; peer++) {
    windows->grid[peer] = peer;
  }
}

void world_share(struct world *world, int local)
{
  for (int rank = 0; rank < world->ranks; rank++) {
    make_windows(world, rank, local);
  }
  for (int rank = 0; rank < world->ranks; rank++) {
    struct windows *windows = &world->windows[rank];
    for (int local_rank = 0; local_rank < local; local_rank++) {
      int peer = local_rank * windows->hosts + windows->host;
      windows->peers[local_rank] =
          (struct window_peer){.rank = peer, .process = -1, .window = world->windows[peer].own};
    }
  }
}

unsigned world_draw(struct world *world, unsigned limit)
{
  world->random = world->random * 1664525 + 1013904223;
  return (world->random >> 8) % limit;
}

bool world_done(const struct world *world, int rank) { return world->schedules[rank].left == 0; }

/* The first step of a queue if it may start. */
static struct step *ready(struct schedule *schedule, const struct queue *queue)
{
  if (queue->head == NO_STEP || !step_may_start(schedule, &schedule->steps[queue->head])) {
    return NULL;
  }
  return &schedule->steps[queue->head];
}

static void finish(struct schedule *schedule, struct queue *queue, struct step *step)
{
  step->done = true;
  schedule->left--;
  queue->head = step->next;
}

/* Lets a rank that has ended its operation begin the next one. */
static bool go_on(struct world *world, int rank)
{
  struct schedule *later = world->later[rank];
  if (world->schedules[rank].left > 0 || later[0].ranks == 0) {
    return false;
  }
  schedule_free(&world->schedules[rank]);
  world->schedules[rank] = later[0];
  memmove(&later[0], &later[1], (WORLD_LATER - 1) * sizeof later[0]);
  later[WORLD_LATER - 1] = (struct schedule){0};
  return true;
}

/* Whether others could still move: tries have failed only a few times. */
static bool others_may_move(const struct world *world)
{
  return world->idle < 10 * (unsigned)(world->ranks * world->ranks);
}

static bool compute(struct world *world, int rank)
{
  if (rank == world->lazy && others_may_move(world)) {
    return false;
  }
  struct schedule *schedule = &world->schedules[rank];
  struct queue *queue = schedule_computing(schedule);
  struct step *step = ready(schedule, queue);
  if (!step) {
    return go_on(world, rank);
  }
  if (step->kind == STEP_MATCH) {
    world->mismatch |= windows_match(schedule->windows, step->from, schedule->number,
                                     step->bytes) != WINDOW_MATCHES;
  }
  step_compute(schedule, step);
  finish(schedule, queue, step);
  return true;
}

/* A hash of the step's bytes, not 0. */
static uint64_t sum_up(const struct step *step)
{
  return fnv1a_64(FNV1A_64_BEGIN, step->data, step->bytes) | 1;
}

static void acknowledge(struct world *world, int from, int to, const char **wrong)
{
  struct schedule *sender = &world->schedules[from];
  struct queue *queue = schedule_sends(sender, to);
  struct step *step = &sender->steps[queue->head];
  if (sum_up(step) != world->unacknowledged[from][to]) {
    *wrong = "data change before they are acknowledged";
  }
  world->unacknowledged[from][to] = 0;
  finish(sender, queue, step);
}

static void count(struct world *world, int from, int to, size_t bytes)
{
  bool inside = world->windows[from].host == world->windows[to].host;
  *(inside ? &world->inside : &world->across) += bytes;
}

/* One message from one rank to another, or its acknowledgement. */
static bool move(struct world *world, int from, int to, const char **wrong)
{
  struct schedule *sender = &world->schedules[from], *receiver = &world->schedules[to];
  struct queue *in = schedule_receives(receiver, from);
  struct step *send = ready(sender, schedule_sends(sender, to)), *receive = ready(receiver, in);
  if (world->unacknowledged[from][to]) {
    if (from == world->slow && others_may_move(world)) {
      return false;
    }
    acknowledge(world, from, to, wrong);
    return true;
  }
  if (!send || !receive) {
    return false;
  }
  if (send->bytes != receive->bytes) {
    *wrong = "the sizes of a message differ";
    return false;
  }
  memcpy(receive->data, send->data, send->bytes);
  count(world, from, to, send->bytes);
  world->unacknowledged[from][to] = sum_up(send);
  finish(receiver, in, receive);
  return true;
}

const char *world_run(struct world *world)
{
  const char *wrong = NULL;
  unsigned ranks = (unsigned)world->ranks;
  world->idle = 0;
  while (!wrong && world->idle < 40 * ranks * ranks) {
    int one = (int)world_draw(world, ranks), other = (int)world_draw(world, ranks);
    bool awake = one != world->asleep && other != world->asleep;
    bool moved = awake && (one == other ? compute(world, one) : move(world, one, other, &wrong));
    world->idle = moved ? 0 : world->idle + 1;
  }
  return world->mismatch ? "ranks call different operations" : wrong;
}
