/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/group.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harp/bench/clock.h"
#include "harp/collectives/net.h"
#include "harp/collectives/plan.h"

/*
 * Rounds without an event before a driver sleeps between rounds. A thread that waits for an
 * operation has nothing else to do, so it yields for longer. The group's own thread must leave the
 * cores to the training. Drivers sleep earlier on a core that other programs use, too: a yield
 * there lasts until the kernel takes the core from them, but a sleeper gets it back at once.
 */
enum {
  YIELDS_WAITING = 400,
  YIELDS_BESIDE = 40,
  CROWDED_NS = 100000, /* a yield that lasts so long found another program */
  CROWDED_NAPS = 200,  /* before the next yield */
  NAP_NS = 1,          /* and the kernel's timer slack, 50 us */
  LONG_WAIT = 4000,    /* rounds after which the peer is slow, and naps are longer */
  LONG_NAP_NS = 500000,
};

_Static_assert(HARP_HANDLE == LINK_HANDLE + sizeof(struct window_offer), "see harp_group_create");

static int say(char *error, const char *text)
{
  snprintf(error, HARP_ERROR, "%s", text);
  return -1;
}

int harp_collectives_open(const char *path, char *error) { return net_open(path, error); }

/* --- Driving --- */

struct pace {
  unsigned yields; /* limit */
  unsigned idle;   /* rounds without an event */
  unsigned naps;   /* left, because the core is crowded */
};

/* Whether nothing but a signal can let the group go on: its giver wakes the driver. */
static bool awaits_signal_alone(const struct harp_group *group)
{
  const struct windows *windows = &group->windows;
  return windows->awaited && windows->hosts == 1 && p2p_is_idle(&group->p2p);
}

/* Lets other threads run after a round. */
static void rest(struct harp_group *group, struct pace *pace, unsigned events)
{
  pace->idle = events ? 0 : pace->idle + 1;
  if (events) {
    return;
  }
  if (pace->naps == 0 && pace->idle < pace->yields) {
    uint64_t before = clock_ns();
    sched_yield();
    if (clock_ns() - before > CROWDED_NS) {
      pace->naps = CROWDED_NAPS;
    }
    return;
  }
  long nap = pace->idle < LONG_WAIT && !awaits_signal_alone(group) ? NAP_NS : LONG_NAP_NS;
  if (!windows_sleep(&group->windows, nap)) {
    nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
  }
  pace->naps -= pace->naps > 0;
}

static bool has_work(struct harp_group *group)
{
  return atomic_load(&group->unfinished) > 0 || atomic_load(&group->aborts);
}

/* Drives until there is no work, or another thread wants to drive. */
static void drive_beside(struct harp_group *group)
{
  struct pace pace = {.yields = YIELDS_BESIDE};
  while (has_work(group) && atomic_load(&group->waiters) == 0 && !group->failed) {
    rest(group, &pace, group_round(group));
  }
  group_round(group); /* takes what was posted to a failed group */
}

/* Whether the group's thread should take over. The caller holds the lock. */
static bool thread_may_drive(struct harp_group *group)
{
  if (group->driven) {
    return false;
  }
  if (group->failed) {
    return group->links_left || atomic_load(&group->has_posted);
  }
  return has_work(group) && atomic_load(&group->waiters) == 0;
}

static void *thread_main(void *argument)
{
  struct harp_group *group = argument;
  pthread_mutex_lock(&group->lock);
  while (!group->stop) {
    if (!thread_may_drive(group)) {
      pthread_cond_wait(&group->wake, &group->lock);
      continue;
    }
    group->driven = true;
    bool closes = group->links_left;
    group->links_left = false;
    pthread_mutex_unlock(&group->lock);
    drive_beside(group);
    if (closes) {
      links_close(&group->links);
    }
    pthread_mutex_lock(&group->lock);
    group->driven = false;
    pthread_cond_broadcast(&group->changed);
  }
  pthread_mutex_unlock(&group->lock);
  return NULL;
}

/* --- Life --- */

static bool init_threads(struct harp_group *group)
{
  pthread_condattr_t monotonic;
  op_list_init(&group->collectives);
  op_list_init(&group->posted);
  pthread_mutex_init(&group->posting, NULL);
  pthread_mutex_init(&group->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&group->wake, &monotonic);
  pthread_cond_init(&group->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  group->runs = pthread_create(&group->thread, NULL, thread_main, group) == 0;
  return group->runs;
}

static void free_group(struct harp_group *group)
{
  p2p_free(&group->p2p, group->ranks);
  windows_free(&group->windows);
  free(group->names);
  free(group);
}

static struct harp_group *make_group(int rank, int ranks)
{
  struct harp_group *group = calloc(1, sizeof *group);
  if (!group) {
    return NULL;
  }
  atomic_init(&group->references, 1);
  group->rank = rank;
  group->ranks = ranks;
  windows_init(&group->windows);
  algorithms_init(&group->algorithms, ranks);
  group->names = calloc((size_t)ranks, HARP_NAME);
  if (group->names && p2p_init(&group->p2p, ranks)) {
    return group;
  }
  free_group(group);
  return NULL;
}

struct harp_group *harp_group_create(int rank, int ranks, int local, void *handle, char *error)
{
  if (net_open(NULL, error)) {
    return NULL;
  }
  struct harp_group *group = make_group(rank, ranks);
  if (!group) {
    say(error, "no memory for a process group");
    return NULL;
  }
  bool listens = links_init(&group->links, rank, ranks, local, handle, error) == 0;
  memcpy((uint8_t *)handle + LINK_HANDLE, &group->windows.offer, sizeof group->windows.offer);
  if (!init_threads(group)) {
    say(error, "the process group's thread cannot start: see the limit on processes (ulimit -u)");
    listens = false;
  }
  if (!listens) {
    harp_group_destroy(group);
    return NULL;
  }
  return group;
}

int harp_group_start(struct harp_group *group, const void *handles, const char *names, char *error)
{
  size_t ranks = (size_t)group->ranks;
  if (net_refuse_fork(error)) {
    return -1;
  }
  memcpy(group->links.handles, handles, ranks * HARP_HANDLE);
  memcpy(group->names, names, ranks * HARP_NAME);
  for (size_t rank = 0; rank < ranks; rank++) {
    group->names[rank * HARP_NAME + HARP_NAME - 1] = 0;
  }
  windows_attach(&group->windows, group->rank, group->ranks, (const uint8_t *)handles + LINK_HANDLE,
                 HARP_HANDLE);
  return 0;
}

/* The least of what the ranks say tells whether all of them can. */
int harp_group_share(struct harp_group *group, int64_t timeout_ms, char *error)
{
  uint8_t can = group->windows.attached;
  struct harp_view view = {&can, sizeof can};
  struct harp_call call = {.kind = HARP_ALL_REDUCE,
                           .dtype = HARP_UINT8,
                           .reduction = HARP_MIN,
                           .waits = 1,
                           .timeout_ms = timeout_ms,
                           .out = &view};
  struct harp_op *op = harp_post(group, &call, error);
  if (!op) {
    return -1;
  }
  int state = harp_op_wait(op, 0, 1, error);
  op_put(op);
  group->windows.agreed = state == OP_DONE && can;
  windows_close_offer(&group->windows);
  return state == OP_DONE ? can : -1;
}

int harp_group_choose(struct harp_group *group, int wide, int size_class, int algorithm)
{
  pthread_mutex_lock(&group->posting);
  int before = algorithms_choose(&group->algorithms, wide != 0, size_class, algorithm);
  pthread_mutex_unlock(&group->posting);
  return before;
}

void harp_group_abort(struct harp_group *group, const char *reason)
{
  if (net_forked()) {
    return; /* another thread of the parent may have held the lock */
  }
  pthread_mutex_lock(&group->lock);
  if (!group->failed && !atomic_load(&group->aborts)) {
    snprintf(group->reason, sizeof group->reason, "%s", reason);
    atomic_store(&group->aborts, true);
  }
  pthread_cond_signal(&group->wake);
  pthread_mutex_unlock(&group->lock);
}

static void put_group(struct harp_group *group)
{
  if (atomic_fetch_sub(&group->references, 1) > 1) {
    return;
  }
  pthread_cond_destroy(&group->changed);
  pthread_cond_destroy(&group->wake);
  pthread_mutex_destroy(&group->lock);
  pthread_mutex_destroy(&group->posting);
  free_group(group);
}

void harp_group_destroy(struct harp_group *group)
{
  if (net_forked()) {
    return; /* the group is the parent's */
  }
  bool orderly = atomic_load(&group->unfinished) == 0;
  if (!orderly) {
    harp_group_abort(group, "the process group was shut down before the operation ended");
  }
  pthread_mutex_lock(&group->lock);
  group->stop = true;
  pthread_cond_signal(&group->wake);
  pthread_mutex_unlock(&group->lock);
  if (group->runs) {
    pthread_join(group->thread, NULL);
  }
  pthread_mutex_lock(&group->lock);
  while (group->driven) { /* by a thread that waits */
    pthread_cond_wait(&group->changed, &group->lock);
  }
  group->driven = true;
  pthread_mutex_unlock(&group->lock);
  group_round(group); /* fails what is unfinished */
  if (orderly) {
    links_close(&group->links);
  }
  group_fail(group, "the process group was shut down");
  links_free(&group->links);
  put_group(group);
}

/* --- Posting --- */

/* The number of views on this rank. */
static void count_views(const struct harp_group *group, const struct harp_call *call, int *in,
                        int *out)
{
  bool root = call->peer == group->rank;
  int all = group->ranks;
  const struct {
    int in, out;
  } counts[HARP_KINDS] = {
      [HARP_ALL_REDUCE] = {0, 1},
      [HARP_REDUCE] = {0, 1},
      [HARP_BROADCAST] = {0, 1},
      [HARP_ALL_GATHER] = {1, all},
      [HARP_REDUCE_SCATTER] = {all, 1},
      [HARP_ALL_TO_ALL] = {all, all},
      [HARP_GATHER] = {1, root ? all : 0},
      [HARP_SCATTER] = {root ? all : 0, 1},
      [HARP_SEND] = {1, 0},
      [HARP_RECEIVE] = {0, 1},
  };
  *in = counts[call->kind].in;
  *out = counts[call->kind].out;
}

static bool copy_views(const struct harp_group *group, struct harp_op *op,
                       const struct harp_call *call)
{
  int in, out;
  count_views(group, call, &in, &out);
  op->views = malloc((size_t)(in + out + 1) * sizeof *op->views);
  if (!op->views) {
    return false;
  }
  for (int i = 0; i < in + out; i++) {
    op->views[i] = i < in ? call->in[i] : call->out[i - in];
    op->bytes = op->views[i].bytes > op->bytes ? op->views[i].bytes : op->bytes;
  }
  op->view_count = in + out;
  return true;
}

/* What the rank gives to itself: a view to read, and the one that it fills. false: nothing. */
static bool find_own_part(const struct harp_group *group, const struct harp_call *call,
                          const struct harp_view **from, const struct harp_view **to)
{
  int own = group->rank;
  bool rooted = call->kind == HARP_GATHER || call->kind == HARP_SCATTER;
  if (rooted && call->peer != own) {
    return false;
  }
  switch (call->kind) {
  case HARP_ALL_GATHER:
  case HARP_GATHER: *from = call->in, *to = &call->out[own]; return true;
  case HARP_REDUCE_SCATTER:
  case HARP_SCATTER: *from = &call->in[own], *to = call->out; return true;
  case HARP_ALL_TO_ALL: *from = &call->in[own], *to = &call->out[own]; return true;
  default: return false;
  }
}

/* Parts of other ranks are checked when they come. */
static int check_own_part(const struct harp_group *group, const struct harp_call *call, char *error)
{
  const struct harp_view *from, *to;
  if (!find_own_part(group, call, &from, &to) || from->bytes == to->bytes) {
    return 0;
  }
  snprintf(error, HARP_ERROR,
           "rank %d gives itself %zu bytes, and its output for them has %zu: give tensors of the "
           "same size and type",
           group->rank, from->bytes, to->bytes);
  return -1;
}

static int check_call(const struct harp_group *group, const struct harp_call *call, char *error)
{
  bool single = kind_is_single(call->kind);
  bool rooted = single || call->kind == HARP_REDUCE || call->kind == HARP_BROADCAST ||
                call->kind == HARP_GATHER || call->kind == HARP_SCATTER;
  bool any = call->kind == HARP_RECEIVE && call->peer == HARP_ANY_RANK;
  if (call->kind < 0 || call->kind >= HARP_KINDS) {
    return say(error, "unknown operation");
  }
  if (rooted && !any && (call->peer < 0 || call->peer >= group->ranks)) {
    snprintf(error, HARP_ERROR, "the group has ranks 0 to %d, and no rank %d", group->ranks - 1,
             call->peer);
    return -1;
  }
  if (single && call->peer == group->rank) {
    return say(error, "a rank cannot send to itself or receive from itself");
  }
  if (single && call->tag < 0) {
    return say(error, "a tag is 0 or more: use another one");
  }
  return check_own_part(group, call, error);
}

static int fill_op(struct harp_group *group, struct harp_op *op, const struct harp_call *call,
                   char *error)
{
  if (!copy_views(group, op, call) || !schedule_init(&op->schedule, group->ranks)) {
    return say(error, "no memory for an operation");
  }
  if (kind_is_single(call->kind)) {
    op->data = op->views[0].data;
    return 0;
  }
  struct plan plan = {.schedule = &op->schedule,
                      .links = &group->links,
                      .windows = group->windows.agreed ? &group->windows : NULL,
                      .algorithms = &group->algorithms,
                      .rank = group->rank,
                      .ranks = group->ranks,
                      .call = call};
  if (plan_operation(&plan, error)) {
    return -1;
  }
  return op->schedule.out_of_memory ? say(error, "no memory for an operation") : 0;
}

/* The time in timeout_ms, ns; UINT64_MAX: none, or later than the clock counts. */
static uint64_t deadline_in(int64_t timeout_ms)
{
  bool none = timeout_ms <= 0 || timeout_ms > INT64_MAX / 1000000;
  return none ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000;
}

static struct harp_op *make_op(struct harp_group *group, const struct harp_call *call, char *error)
{
  struct harp_op *op = calloc(1, sizeof *op);
  if (!op) {
    say(error, "no memory for an operation");
    return NULL;
  }
  op->group = group;
  atomic_fetch_add(&group->references, 1);
  op->kind = (enum harp_kind)call->kind;
  op->peer = call->peer;
  op->tag = call->tag;
  op->source = HARP_ANY_RANK;
  op->timeout_ms = call->timeout_ms;
  op->deadline_ns = deadline_in(call->timeout_ms);
  atomic_init(&op->references, 1);
  if (fill_op(group, op, call, error)) {
    op_put(op);
    return NULL;
  }
  return op;
}

/* Gives a planned operation to the driver. NULL: the group has failed, and error says why. */
static struct harp_op *post(struct harp_group *group, struct harp_op *op, bool waits, char *error)
{
  pthread_mutex_lock(&group->lock);
  bool failed = group->failed;
  if (failed) {
    say(error, group->reason);
  } else {
    atomic_fetch_add(&op->references, 1);
    atomic_fetch_add(&group->unfinished, 1);
    op_list_add(&group->posted, op);
    atomic_store(&group->has_posted, true);
    if (!waits) {
      pthread_cond_signal(&group->wake);
    }
  }
  pthread_mutex_unlock(&group->lock);
  if (failed) {
    op_put(op);
  }
  return failed ? NULL : op;
}

struct harp_op *harp_post(struct harp_group *group, const struct harp_call *call, char *error)
{
  if (net_refuse_fork(error) || check_call(group, call, error)) {
    return NULL;
  }
  pthread_mutex_lock(&group->posting);
  struct harp_op *op = make_op(group, call, error);
  if (op) {
    op = post(group, op, call->waits, error);
  }
  pthread_mutex_unlock(&group->posting);
  return op;
}

/* --- Waiting --- */

int harp_op_state(struct harp_op *op)
{
  int state = atomic_load_explicit(&op->state, memory_order_acquire);
  return state == OP_PENDING && net_forked() ? OP_FAILED : state;
}

int harp_op_source(struct harp_op *op) { return op->source; }

void op_put(struct harp_op *op)
{
  if (atomic_fetch_sub(&op->references, 1) > 1) {
    return;
  }
  put_group(op->group);
  schedule_free(&op->schedule);
  free(op->views);
  free(op);
}

void harp_op_free(struct harp_op *op)
{
  if (!net_forked()) {
    op_put(op);
  }
}

/* Drives until the operation is done, or the time is over. */
static void drive_for(struct harp_op *op, uint64_t until)
{
  struct pace pace = {.yields = YIELDS_WAITING};
  while (harp_op_state(op) == OP_PENDING) {
    unsigned events = group_round(op->group);
    rest(op->group, &pace, events);
    if (!events && until != UINT64_MAX && clock_ns() >= until) {
      return;
    }
  }
}

/* Waits until nobody drives, and drives then. false: the operation is done, or the time is over. */
static bool may_drive(struct harp_op *op, uint64_t until, bool drives)
{
  struct harp_group *group = op->group;
  struct timespec at = {.tv_sec = (time_t)(until / 1000000000),
                        .tv_nsec = (long)(until % 1000000000)};
  int late = 0;
  while (harp_op_state(op) == OP_PENDING && !late && (group->driven || !drives)) {
    if (until == UINT64_MAX) {
      pthread_cond_wait(&group->changed, &group->lock);
    } else {
      late = pthread_cond_timedwait(&group->changed, &group->lock, &at);
    }
  }
  if (harp_op_state(op) != OP_PENDING || late) {
    return false;
  }
  group->driven = true;
  return true;
}

int harp_op_wait(struct harp_op *op, int64_t timeout_ms, int drives, char *error)
{
  if (net_refuse_fork(error)) {
    return harp_op_state(op);
  }
  struct harp_group *group = op->group;
  uint64_t until = deadline_in(timeout_ms);
  atomic_fetch_add(&group->waiters, drives ? 1 : 0);
  pthread_mutex_lock(&group->lock);
  if (may_drive(op, until, drives)) {
    pthread_mutex_unlock(&group->lock);
    drive_for(op, until);
    pthread_mutex_lock(&group->lock);
    group->driven = false;
    pthread_cond_broadcast(&group->changed);
  }
  atomic_fetch_sub(&group->waiters, drives ? 1 : 0);
  if (has_work(group) || group->links_left) {
    pthread_cond_signal(&group->wake);
  }
  int state = harp_op_state(op);
  if (state == OP_FAILED) {
    say(error, group->reason);
  }
  pthread_mutex_unlock(&group->lock);
  return state;
}
