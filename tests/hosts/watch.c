/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/hosts/watch.h"

#include <stdbool.h>

/* The bytes of a line that should not be as they are. */
static unsigned long scan_line(const unsigned char *data, const unsigned char *expected)
{
  unsigned long missing = 0, foreign = 0;
  for (int i = WATCH_LINE; i-- > 0;) {
    unsigned char seen = *(const volatile unsigned char *)(data + i);
    foreign += seen != WATCH_FILL && seen != expected[i];
    missing += seen != expected[i];
    if (i == WATCH_LINE - WATCH_FLAG && missing) {
      return foreign; /* its flag is not there */
    }
  }
  return missing;
}

static void scan(struct watch *watch, struct watch_slot *slot)
{
  unsigned long before = atomic_load(&slot->posts);
  const unsigned char *expected = atomic_load(&slot->expected);
  unsigned long foreign = 0;
  if (before % 2 == 0) {
    return;
  }
  for (size_t i = 0; i < slot->size; i += WATCH_LINE) {
    foreign += scan_line(slot->data + i, expected + i);
  }
  atomic_fetch_add(&watch->scans, 1);
  if (atomic_load(&slot->posts) == before) {
    atomic_fetch_add(&watch->foreign, foreign);
  }
}

static void *run(void *argument)
{
  struct watch *watch = argument;
  while (!atomic_load(&watch->stop)) {
    for (unsigned i = 0; i < atomic_load(&watch->count); i++) {
      scan(watch, &watch->slots[i]);
    }
  }
  return NULL;
}

int watch_start(struct watch *watch) { return pthread_create(&watch->thread, NULL, run, watch); }

unsigned long watch_end(struct watch *watch)
{
  atomic_store(&watch->stop, true);
  pthread_join(watch->thread, NULL);
  return atomic_load(&watch->foreign);
}

static struct watch_slot *find(struct watch *watch, const unsigned char *data)
{
  for (unsigned i = 0; i < atomic_load(&watch->count); i++) {
    if (watch->slots[i].data == data) {
      return &watch->slots[i];
    }
  }
  return NULL;
}

void watch_posted(struct watch *watch, const unsigned char *data, const unsigned char *expected,
                  size_t size)
{
  struct watch_slot *slot = find(watch, data);
  if (!slot && atomic_load(&watch->count) == WATCH_SLOTS) {
    return;
  }
  if (!slot) {
    slot = &watch->slots[atomic_load(&watch->count)];
    slot->data = data;
    slot->size = size;
    atomic_store(&slot->expected, expected);
    atomic_fetch_add(&watch->count, 1);
  }
  atomic_store(&slot->expected, expected);
  atomic_fetch_add(&slot->posts, 1);
}

void watch_released(struct watch *watch, const unsigned char *data)
{
  struct watch_slot *slot = find(watch, data);
  if (slot) {
    atomic_fetch_add(&slot->posts, 1);
  }
}
