/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/collectives/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "harp/collectives/links.h"
#include "harp/collectives/windows.h"

bool schedule_init(struct schedule *schedule, int ranks)
{
  size_t queues = 2 * (size_t)ranks + 1;
  *schedule = (struct schedule){.ranks = ranks};
  schedule->queues = malloc(queues * sizeof(struct queue));
  for (size_t i = 0; schedule->queues && i < queues; i++) {
    schedule->queues[i] = (struct queue){NO_STEP, NO_STEP};
  }
  return schedule->queues != NULL;
}

void schedule_free(struct schedule *schedule)
{
  free(schedule->steps);
  free(schedule->queues);
  free(schedule->wide);
  free(schedule->call);
}

bool schedule_make_wide(struct schedule *schedule, size_t bytes)
{
  schedule->wide = malloc(bytes + 1);
  schedule->out_of_memory |= !schedule->wide;
  return schedule->wide != NULL;
}

static struct step *new_step(struct schedule *schedule)
{
  if (schedule->count == schedule->capacity) {
    int32_t capacity = schedule->capacity ? 2 * schedule->capacity : 16;
    struct step *steps = realloc(schedule->steps, (size_t)capacity * sizeof *steps);
    if (!steps) {
      schedule->out_of_memory = true;
      return NULL;
    }
    schedule->steps = steps;
    schedule->capacity = capacity;
  }
  return &schedule->steps[schedule->count];
}

static int32_t add(struct schedule *schedule, struct queue *queue, struct step step)
{
  struct step *made = new_step(schedule);
  if (!made) {
    return NO_STEP;
  }
  step.next = NO_STEP;
  *made = step;
  int32_t number = schedule->count++;
  if (queue->head == NO_STEP) {
    queue->head = number;
  } else {
    schedule->steps[queue->tail].next = number;
  }
  queue->tail = number;
  schedule->left++;
  return number;
}

static int32_t add_message(struct schedule *schedule, struct queue *queue, enum step_kind kind,
                           void *data, size_t bytes, int32_t after)
{
  int32_t last = NO_STEP;
  for (size_t done = 0; done < bytes; done += LINK_LONG) {
    size_t part = bytes - done < LINK_LONG ? bytes - done : LINK_LONG;
    last = add(schedule, queue,
               (struct step){.kind = kind,
                             .after = {after, NO_STEP},
                             .data = (uint8_t *)data + done,
                             .bytes = part});
  }
  return last;
}

int32_t add_send(struct schedule *schedule, int peer, const void *data, size_t bytes, int32_t after)
{
  return add_message(schedule, schedule_sends(schedule, peer), STEP_SEND, (void *)(uintptr_t)data,
                     bytes, after);
}

int32_t add_receive(struct schedule *schedule, int peer, void *data, size_t bytes, int32_t after)
{
  return add_message(schedule, schedule_receives(schedule, peer), STEP_RECEIVE, data, bytes, after);
}

int32_t add_compute(struct schedule *schedule, enum step_kind kind, void *data, const void *from,
                    size_t count, int32_t after, int32_t also)
{
  return add(schedule, schedule_computing(schedule),
             (struct step){.kind = kind,
                           .after = {after, also},
                           .data = data,
                           .from = from,
                           .bytes = kind == STEP_COPY || kind == STEP_MATCH ? count : 0,
                           .count = count});
}

void add_copy(struct schedule *schedule, void *to, const void *from, size_t bytes)
{
  add_compute(schedule, STEP_COPY, to, from, bytes, NO_STEP, NO_STEP);
}

static uint32_t signal_with(struct schedule *schedule, uint32_t number)
{
  add_compute(schedule, STEP_SIGNAL, NULL, NULL, (uint32_t)(schedule->first + number), NO_STEP,
              NO_STEP);
  return schedule->signals = number;
}

uint32_t add_signal(struct schedule *schedule)
{
  return signal_with(schedule, schedule->signals + 1);
}

void add_last_signal(struct schedule *schedule) { signal_with(schedule, WINDOW_LAST_SIGNAL); }

void add_await(struct schedule *schedule, int local_rank, uint32_t signal)
{
  add_compute(schedule, STEP_AWAIT, NULL, schedule->windows->peers[local_rank].window,
              (uint32_t)(schedule->first + signal), NO_STEP, NO_STEP);
}

void add_await_others(struct schedule *schedule, uint32_t signal)
{
  for (int local_rank = 0; local_rank < schedule->windows->count; local_rank++) {
    if (local_rank != schedule->windows->local_rank) {
      add_await(schedule, local_rank, signal);
    }
  }
}

void add_match(struct schedule *schedule, int local_rank, size_t bytes)
{
  add_compute(schedule, STEP_MATCH, NULL, schedule->windows->peers[local_rank].window, bytes,
              NO_STEP, NO_STEP);
}

void start_after(struct schedule *schedule, int32_t message, int32_t step)
{
  if (message != NO_STEP) {
    schedule->steps[message].after[1] = step;
  }
}

void mark_staged(struct schedule *schedule, int32_t step)
{
  if (step != NO_STEP) {
    schedule->steps[step].staged = true;
  }
}

bool step_may_start(const struct schedule *schedule, const struct step *step)
{
  for (int i = 0; i < 2; i++) {
    if (step->after[i] != NO_STEP && !schedule->steps[step->after[i]].done) {
      return false;
    }
  }
  return step->kind != STEP_AWAIT || window_has_signaled(step->from, (uint32_t)step->count);
}

void step_compute(const struct schedule *schedule, const struct step *step)
{
  const struct reduction *reduction = &schedule->reduction;
  switch (step->kind) {
  case STEP_COPY:
    if (step->data != step->from) {
      memmove(step->data, step->from, step->bytes);
    }
    break;
  case STEP_LOAD: reduction_load(reduction, step->data, step->from, step->count); break;
  case STEP_FOLD: reduction_fold(reduction, step->data, step->from, step->count); break;
  case STEP_FOLD_WIDE: reduction->fold(step->data, step->from, step->count); break;
  case STEP_STORE: reduction_store(reduction, step->data, step->from, step->count); break;
  case STEP_SIGNAL: windows_signal(schedule->windows, (uint32_t)step->count); break;
  case STEP_AWAIT: break; /* it has waited */
  case STEP_MATCH: break; /* progress.c tells what does not match */
  case STEP_SEND:
  case STEP_RECEIVE: break; /* not in this queue */
  }
}
