/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out schedules, notices deadlines, and fails the group. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "harp/bench/clock.h"
#include "harp/collectives/group.h"
#include "harp/collectives/net.h"

enum {
  DEADLINES_EVERY_NS = 10000000,
  AWAITED_NAMED = 4, /* peers in a message, which has HARP_ERROR bytes */
};

/* --- Failure --- */

static void end_op(struct harp_group *group, struct harp_op *op, enum op_state state)
{
  pthread_mutex_lock(&group->lock);
  atomic_store_explicit(&op->state, state, memory_order_release);
  pthread_cond_broadcast(&group->changed);
  pthread_mutex_unlock(&group->lock);
  atomic_fetch_sub(&group->unfinished, 1);
  op_put(op);
}

void group_op_done(struct harp_group *group, struct harp_op *op) { end_op(group, op, OP_DONE); }

static void take_posted(struct harp_group *group)
{
  struct op_list posted;
  op_list_init(&posted);
  pthread_mutex_lock(&group->lock);
  while (group->posted.first) {
    op_list_add(&posted, op_list_remove(&group->posted, &group->posted.first));
  }
  atomic_store(&group->has_posted, false);
  pthread_mutex_unlock(&group->lock);
  while (posted.first) {
    struct harp_op *op = op_list_remove(&posted, &posted.first);
    if (group->failed) {
      end_op(group, op, OP_FAILED);
    } else if (kind_is_single(op->kind)) {
      p2p_add(group, op);
    } else {
      op_list_add(&group->collectives, op);
    }
  }
}

void group_fail(struct harp_group *group, const char *format, ...)
{
  if (group->failed) {
    return;
  }
  char reason[HARP_ERROR];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&group->lock);
  memcpy(group->reason, reason, sizeof reason);
  group->failed = true;
  group->links_left = true;
  pthread_cond_signal(&group->wake);
  pthread_mutex_unlock(&group->lock);
  windows_leave(&group->windows, group->rank);
  /* Before the operations end: their memory is then the caller's again. The close of the other
   * links may wait for acknowledgements, and so is left to the group's thread. */
  links_leave_memory(&group->links);
  p2p_drain(&group->p2p, group->ranks, &group->collectives);
  while (group->collectives.first) {
    end_op(group, op_list_remove(&group->collectives, &group->collectives.first), OP_FAILED);
  }
}

void group_link_failed(struct harp_group *group, const struct harp_op *op, int peer, bool sends,
                       int result)
{
  char why[400];
  net_take_warning(why, sizeof why);
  windows_leave(&group->windows, peer);
  if (!op) {
    op = group->collectives.first;
  }
  group_fail(group,
             "%s of rank %d: the link %s rank %d on %s failed (%s)%s%s. That rank has ended or has "
             "lost its network, or another rank's failure ended it: look at its log, and restart "
             "the job",
             op ? op_name(op) : "an operation", group->rank, sends ? "to" : "from", peer,
             group_name(group, peer), netapi_result_name((ncclResult_t)result), why[0] ? ": " : "",
             why);
}

/* --- Collectives --- */

static void step_done(struct schedule *schedule, struct step *step)
{
  step->done = true;
  schedule->left--;
}

/* The caller's view that contains the step's message. */
static const struct harp_view *view_of(const struct harp_op *op, const struct step *step)
{
  const uint8_t *data = step->data;
  for (int i = 0; i < op->view_count; i++) {
    const uint8_t *view = op->views[i].data;
    if (data >= view && data + step->bytes <= view + op->views[i].bytes) {
      return &op->views[i];
    }
  }
  return NULL;
}

static int post_step(struct harp_group *group, const struct harp_op *op, struct link *link,
                     int32_t number, int *result)
{
  const struct step *step = &op->schedule.steps[number];
  int call = link_open(&group->links, link, result);
  if (call <= 0) {
    return call;
  }
  if (!step->staged && step->bytes > LINK_SHORT) {
    const struct harp_view *view = view_of(op, step);
    if (view && link_register(link, view->data, view->bytes, result) < 0) {
      return -1;
    }
  }
  return link_post(link, step->data, step->bytes, step->staged, NULL, number, result);
}

static void fail_sizes(struct harp_group *group, const struct harp_op *op, int peer,
                       size_t expected, size_t got)
{
  group_fail(group,
             "%s of rank %d expects %zu bytes of rank %d on %s and got %zu: the ranks call "
             "different operations, or with tensors of different sizes",
             op_name(op), group->rank, expected, peer, group_name(group, peer), got);
}

static bool sizes_agree(struct harp_group *group, const struct harp_op *op, const struct link *link,
                        const struct step *step, size_t size)
{
  if (link->sends || size == step->bytes) {
    return true;
  }
  fail_sizes(group, op, link->peer, step->bytes, size);
  return false;
}

/* One round on one link. */
static unsigned queue_round(struct harp_group *group, struct harp_op *op, struct link *link,
                            struct queue *queue)
{
  struct schedule *schedule = &op->schedule;
  struct link_message message;
  size_t size;
  unsigned events = 0;
  int result = 0, call = 0;
  while (link->comm && (call = link_take(link, &message, &size, &result)) > 0) {
    events++;
    if (message.step == LINK_HELLO) {
      continue;
    }
    struct step *step = &schedule->steps[message.step];
    if (!sizes_agree(group, op, link, step, size)) {
      return events;
    }
    step_done(schedule, step);
  }
  while (call >= 0 && queue->head != NO_STEP) {
    const struct step *step = &schedule->steps[queue->head];
    if (!step_may_start(schedule, step) ||
        (call = post_step(group, op, link, queue->head, &result)) <= 0) {
      break;
    }
    queue->head = step->next;
    events++;
  }
  if (call < 0) {
    group_link_failed(group, op, link->peer, link->sends, result);
  }
  return events;
}

/* The rank of this host that owns a window. */
static int owner_of(const struct harp_group *group, const struct window *window)
{
  int local_rank = 0;
  while (group->windows.peers[local_rank].window != window) {
    local_rank++;
  }
  return group->windows.peers[local_rank].rank;
}

/* Whether a rank of this host calls what this rank calls. */
static bool calls_match(struct harp_group *group, const struct harp_op *op, const struct step *step)
{
  const struct window *window = step->from;
  int peer = owner_of(group, window);
  size_t call = op->schedule.number;
  switch (windows_match(&group->windows, window, call, step->bytes)) {
  case WINDOW_MATCHES: return true;
  case WINDOW_OTHER_SIZE:
    fail_sizes(group, op, peer, step->bytes, window->calls[call].gives[group->windows.local_rank]);
    return false;
  case WINDOW_OTHER_SIZES:
    group_fail(group,
               "%s of rank %d has other sizes for the ranks than that of rank %d on %s: all ranks "
               "must give the same list of sizes",
               op_name(op), group->rank, peer, group_name(group, peer));
    return false;
  case WINDOW_OTHER_CALL: break;
  }
  group_fail(
      group,
      "%s of rank %d meets %s of rank %d on %s: the ranks call different operations, or with "
      "another root, reduction or type. Look at the program",
      op_name(op), group->rank, kind_name(window->calls[call].kind), peer, group_name(group, peer));
  return false;
}

/* The signal that computing waits for, or NULL. */
static const struct step *awaited_signal(struct schedule *schedule)
{
  const struct queue *queue = schedule_computing(schedule);
  if (queue->head == NO_STEP || schedule->steps[queue->head].kind != STEP_AWAIT) {
    return NULL;
  }
  return &schedule->steps[queue->head];
}

static unsigned compute_round(struct harp_group *group, struct harp_op *op)
{
  struct schedule *schedule = &op->schedule;
  struct queue *queue = schedule_computing(schedule);
  unsigned events = 0;
  while (queue->head != NO_STEP && step_may_start(schedule, &schedule->steps[queue->head])) {
    struct step *step = &schedule->steps[queue->head];
    if (step->kind == STEP_MATCH && !calls_match(group, op, step)) {
      return events;
    }
    step_compute(schedule, step);
    step_done(schedule, step);
    queue->head = step->next;
    events++;
  }
  return events;
}

static void finish_collective(struct harp_group *group, struct harp_op *op)
{
  for (int peer = 0; peer < group->ranks; peer++) {
    link_forget(links_get(&group->links, LINK_COLLECTIVE, true, peer));
    link_forget(links_get(&group->links, LINK_COLLECTIVE, false, peer));
  }
  group->windows.awaited = NULL;
  op_list_remove(&group->collectives, &group->collectives.first);
  group_op_done(group, op);
}

static unsigned collective_round(struct harp_group *group)
{
  struct harp_op *op = group->collectives.first;
  if (!op) {
    return 0;
  }
  struct schedule *schedule = &op->schedule;
  unsigned events = compute_round(group, op);
  for (int i = 0; !group->failed && i < 2 * group->ranks && schedule->left > 0; i++) {
    int peer = i / 2;
    bool sends = i % 2 == 0;
    struct queue *queue = sends ? schedule_sends(schedule, peer)
                                : schedule_receives(schedule, peer);
    if (queue->tail == NO_STEP) {
      continue;
    }
    events += queue_round(group, op, links_get(&group->links, LINK_COLLECTIVE, sends, peer), queue);
    if (!group->failed) {
      events += compute_round(group, op);
    }
  }
  if (group->failed) {
    return events;
  }
  if (schedule->left == 0) {
    finish_collective(group, op);
    return events + 1;
  }
  const struct step *signal = awaited_signal(schedule);
  group->windows.awaited = signal ? signal->from : NULL;
  group->windows.awaited_signal = signal ? (uint32_t)signal->count : 0;
  group->windows.last_signal = schedule->first + schedule->signals;
  return events;
}

/* --- Deadlines --- */

/* The rank of the host whose signal the operation waits for, or -1. */
static int signalling_peer(struct harp_group *group, struct harp_op *op)
{
  const struct step *signal = awaited_signal(&op->schedule);
  return signal ? owner_of(group, signal->from) : -1;
}

/* Whether the operation waits for a message of this direction. One that must follow another step is
 * not waited for yet. */
static bool waits_for(struct harp_group *group, struct harp_op *op, int peer, bool sends)
{
  if (kind_is_single(op->kind)) {
    return op->peer == peer && sends == (op->kind == HARP_SEND);
  }
  if (!sends && signalling_peer(group, op) == peer) {
    return true;
  }
  const struct schedule *schedule = &op->schedule;
  const struct queue *queue = sends ? schedule_sends(&op->schedule, peer)
                                    : schedule_receives(&op->schedule, peer);
  const struct link *link = links_get(&group->links, LINK_COLLECTIVE, sends, peer);
  bool may_start = queue->head != NO_STEP &&
                   step_may_start(schedule, &schedule->steps[queue->head]);
  return may_start || (queue->tail != NO_STEP && link->posted != link->done);
}

/* Appends to text of `size` bytes, and cuts what has no room. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
                                                         const char *format, ...)
{
  size_t length = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + length, size - length, format, arguments);
  va_end(arguments);
}

/* Writes whom the operation waits for: all peers, or the first ones and their number.
 * Returns the first one, or -1. */
static int say_awaited(struct harp_group *group, struct harp_op *op, char *text, size_t size)
{
  static const char *const tasks[] = {"", "send", "receive", "send and receive"};
  int count = 0, first = -1;
  text[0] = '\0';
  for (int peer = 0; peer < group->ranks; peer++) {
    int task = (waits_for(group, op, peer, false) ? 1 : 0) +
               (waits_for(group, op, peer, true) ? 2 : 0);
    if (task && first < 0) {
      first = peer;
    }
    if (task && count++ < AWAITED_NAMED) {
      append(text, size, "%srank %d on %s to %s", count > 1 ? ", " : "", peer,
             group_name(group, peer), tasks[task]);
    }
  }
  if (count > AWAITED_NAMED) {
    append(text, size, ", and %d more", count - AWAITED_NAMED);
  }
  if (count == 0) {
    append(text, size, "any rank");
  }
  return first;
}

static void fail_late(struct harp_group *group, struct harp_op *op)
{
  char whom[AWAITED_NAMED * (HARP_NAME + 40)];
  /* A collective waits for those before it. */
  struct harp_op *running = kind_is_single(op->kind) ? op : group->collectives.first;
  int first = say_awaited(group, running, whom, sizeof whom);
  if (first >= 0) {
    windows_leave(&group->windows, first);
  }
  group_fail(
      group,
      "%s of rank %d (%zu bytes) has not ended within %lld ms: it waits for %s. Look whether each "
      "runs and calls the same operation; a longer timeout is an argument of init_process_group "
      "and new_group",
      op_name(op), group->rank, op->bytes, (long long)op->timeout_ms, whom);
}

struct lateness {
  uint64_t now;
  struct harp_op *late; /* the one with the first deadline */
};

static void find_late(struct harp_op *op, void *user)
{
  struct lateness *lateness = user;
  bool is_first = !lateness->late || op->deadline_ns < lateness->late->deadline_ns;
  if (op->deadline_ns < lateness->now && is_first) {
    lateness->late = op;
  }
}

static void check_windows(struct harp_group *group)
{
  int rank;
  enum window_loss loss = windows_lost(&group->windows, &rank);
  if (loss == WINDOW_KEPT) {
    return;
  }
  windows_leave(&group->windows, rank);
  if (rank == group->rank) {
    group_fail(group,
               "%s of rank %d: another rank of this host has given up on this one, which came late "
               "or lost its links: look at the other ranks' logs, and restart the job",
               op_name(group->collectives.first), group->rank);
    return;
  }
  group_fail(group, "%s of rank %d: rank %d on %s has %s: look at its log, and restart the job",
             op_name(group->collectives.first), group->rank, rank, group_name(group, rank),
             loss == WINDOW_DIED ? "ended" : "failed or left the group");
}

static void check_deadlines(struct harp_group *group)
{
  struct lateness lateness = {.now = clock_ns()};
  if (lateness.now - group->deadlines_ns < DEADLINES_EVERY_NS) {
    return;
  }
  group->deadlines_ns = lateness.now;
  for (struct harp_op *op = group->collectives.first; op; op = op->next) {
    find_late(op, &lateness);
  }
  p2p_each(&group->p2p, group->ranks, find_late, &lateness);
  if (lateness.late) {
    fail_late(group, lateness.late);
  } else if (group->collectives.first) {
    check_windows(group);
  }
}

static void take_abort(struct harp_group *group)
{
  char reason[HARP_ERROR];
  pthread_mutex_lock(&group->lock);
  memcpy(reason, group->reason, sizeof reason);
  pthread_mutex_unlock(&group->lock);
  group_fail(group, "%s", reason);
}

unsigned group_round(struct harp_group *group)
{
  unsigned events = 0;
  if (atomic_load(&group->has_posted)) {
    take_posted(group);
  }
  if (atomic_load(&group->aborts)) {
    take_abort(group);
  }
  if (!group->failed) {
    events += collective_round(group);
  }
  if (!group->failed) {
    events += p2p_round(group);
  }
  if (!events && !group->failed) {
    check_deadlines(group);
  }
  return events;
}
