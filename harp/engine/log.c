/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harp/engine/log.h"
#include "harp/fnv1a.h"

enum { KINDS = 64 }; /* entries of the rate limiter; a power of two */

struct line {
  enum harp_log_level level;
  char text[HARP_LOG_LINE_SIZE];
};

/* Messages with the same text except for digits. */
struct kind {
  uint64_t hash;
  time_t since;   /* CLOCK_MONOTONIC, s */
  unsigned count; /* in this period */
};

static struct {
  pthread_mutex_t lock;
  unsigned first, waiting; /* a ring; waiting is read without the lock, too */
  uint64_t dropped;        /* the same */
  struct kind kinds[KINDS];
  struct line lines[HARP_LOG_QUEUE];
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of everything but digits. */
static uint64_t hash_of(const char *text)
{
  uint64_t hash = FNV1A_64_BEGIN;

  for (; *text; text++) {
    if (*text < '0' || *text > '9') {
      hash = fnv1a_64(hash, text, 1);
    }
  }
  return hash;
}

static time_t seconds(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* Whether a line may be logged now. *held: dropped lines of its kind in the period that has just
 * ended. Called with the lock. */
static bool may_pass(const char *text, unsigned *held)
{
  uint64_t hash = hash_of(text);
  struct kind *kind = &queue.kinds[hash & (KINDS - 1)];
  time_t now = seconds();

  *held = 0;
  if (kind->hash != hash || kind->count == 0 || now - kind->since >= HARP_LOG_PERIOD_S) {
    if (kind->hash == hash && kind->count > HARP_LOG_BURST) {
      *held = kind->count - HARP_LOG_BURST;
    }
    *kind = (struct kind){.hash = hash, .since = now, .count = 0};
  }
  return ++kind->count <= HARP_LOG_BURST;
}

/* Called with the lock. */
static void put(enum harp_log_level level, const char *text)
{
  struct line *line;

  if (queue.waiting == HARP_LOG_QUEUE) {
    __atomic_store_n(&queue.dropped, queue.dropped + 1, __ATOMIC_RELAXED);
    return;
  }
  line = &queue.lines[(queue.first + queue.waiting) % HARP_LOG_QUEUE];
  line->level = level;
  snprintf(line->text, sizeof(line->text), "%s", text);
  __atomic_store_n(&queue.waiting, queue.waiting + 1, __ATOMIC_RELEASE);
}

static bool debugging(void)
{
  const char *debug = getenv("HARP_DEBUG");

  return debug && *debug && strcmp(debug, "0") != 0;
}

void harp_log_post(enum harp_log_level level, const char *format, ...)
{
  char text[HARP_LOG_LINE_SIZE];
  va_list arguments;
  unsigned held;
  bool passes;

  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&queue.lock);
  passes = may_pass(text, &held);
  if (held) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof(text) - used, " (and %u more like this in %d s)", held,
             HARP_LOG_PERIOD_S);
  }
  if (passes) {
    put(level, text);
  }
  pthread_mutex_unlock(&queue.lock);
  if (passes && debugging()) {
    fprintf(stderr, "HARP[%d] %s: %s\n", (int)getpid(), level == HARP_LOG_WARN ? "WARN" : "INFO",
            text);
  }
}

static bool take(struct line *line)
{
  bool some;

  pthread_mutex_lock(&queue.lock);
  some = queue.waiting > 0;
  if (some) {
    *line = queue.lines[queue.first];
    queue.first = (queue.first + 1) % HARP_LOG_QUEUE;
    __atomic_store_n(&queue.waiting, queue.waiting - 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&queue.lock);
  return some;
}

void harp_log_drain(harp_log_writer write, void *user)
{
  struct line line;

  /* The logger may block, so it is called without the lock. */
  for (int i = 0; i < HARP_LOG_QUEUE; i++) {
    if (__atomic_load_n(&queue.waiting, __ATOMIC_ACQUIRE) == 0 || !take(&line)) {
      return;
    }
    write(line.level, line.text, user);
  }
}

/* All instances ask at each tick, so it does not take the lock. */
uint64_t harp_log_dropped(void) { return __atomic_load_n(&queue.dropped, __ATOMIC_RELAXED); }

void harp_log_forget(void)
{
  pthread_mutex_init(&queue.lock, NULL);
  queue.first = 0;
  queue.waiting = 0;
}
