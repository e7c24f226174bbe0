/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena whose content and sanitizer shadow are saved and restored. So each input finds a live
 * connection for the cost of a copy. The linker redirects malloc and similar calls here (--wrap).
 */
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

enum {
  ARENA_SIZE = 8 << 20,
  MARGIN = 64, /* bytes between allocations */
  GRAIN = 64,  /* alignment; covers whole bytes of the sanitizer's shadow */
  SKIPS_MAX = 8,
  HEADER = GRAIN, /* a block's size is stored before it */
};

static _Alignas(4096) uint8_t arena[ARENA_SIZE];
static uint8_t kept[ARENA_SIZE], kept_shadow[ARENA_SIZE / 8];
static size_t used, kept_size;
static size_t held, kept_held; /* allocated bytes that were not freed */
static bool inside;
static struct {
  size_t start, end;
} skips[SKIPS_MAX];
static unsigned skip_count;

/* The sanitizer's runtime has it, but its public header does not declare it. */
void __asan_get_shadow_mapping(size_t *scale, size_t *offset);

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *memory);

void arena_enter(void) { inside = true; }
void arena_leave(void) { inside = false; }

static bool within(const void *memory)
{
  return (const uint8_t *)memory >= arena && (const uint8_t *)memory < arena + ARENA_SIZE;
}

static size_t round_up(size_t size) { return (size + GRAIN - 1) & ~(size_t)(GRAIN - 1); }

static void *take(size_t size)
{
  size_t start = used + HEADER;
  if (size > ARENA_SIZE || start + round_up(size) + MARGIN > ARENA_SIZE) {
    errno = ENOMEM;
    return NULL;
  }
  if (used == 0) {
    ASAN_POISON_MEMORY_REGION(arena, ARENA_SIZE);
  }
  used = start + round_up(size) + MARGIN;
  held += size;
  ASAN_UNPOISON_MEMORY_REGION(arena + start - sizeof size, sizeof size);
  memcpy(arena + start - sizeof size, &size, sizeof size);
  ASAN_UNPOISON_MEMORY_REGION(arena + start, size);
  return arena + start;
}

void *__wrap_malloc(size_t size) { return inside ? take(size) : __real_malloc(size); }

void *__wrap_calloc(size_t count, size_t size)
{
  size_t total;
  if (!inside) {
    return __real_calloc(count, size);
  }
  void *memory = __builtin_mul_overflow(count, size, &total) ? NULL : take(total);
  return memory ? memset(memory, 0, total) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
  if (!within(old) && (old || !inside)) {
    return __real_realloc(old, size);
  }
  size_t before = 0;
  void *memory = take(size);
  if (old && memory) {
    memcpy(&before, (uint8_t *)old - sizeof before, sizeof before);
    memcpy(memory, old, before < size ? before : size);
    __wrap_free(old);
  }
  return memory;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
  return inside && alignment <= GRAIN ? take(size) : __real_aligned_alloc(alignment, size);
}

void __wrap_free(void *memory)
{
  size_t size;
  if (!within(memory)) {
    __real_free(memory);
    return;
  }
  /* traps if the block was freed before */
  memcpy(&size, (uint8_t *)memory - sizeof size, sizeof size);
  held -= size;
  ASAN_POISON_MEMORY_REGION((uint8_t *)memory - HEADER, HEADER + round_up(size));
}

void arena_skip(const void *start, size_t size)
{
  size_t from = round_up((size_t)((const uint8_t *)start - arena));
  size_t to = (size_t)((const uint8_t *)start + size - arena) & ~(size_t)(GRAIN - 1);
  FUZZ_EXPECT(skip_count < SKIPS_MAX && (skip_count == 0 || skips[skip_count - 1].end <= from));
  skips[skip_count].start = from;
  skips[skip_count++].end = to;
}

static uint8_t *shadow(void)
{
  size_t scale, offset;
  __asan_get_shadow_mapping(&scale, &offset);
  return (uint8_t *)(((uintptr_t)arena >> scale) + offset);
}

/* Copies words without the sanitizer's checks, because freed blocks are saved and restored, too. */
__attribute__((no_sanitize("address", "undefined", "coverage"))) static void copy(
    uint8_t *to, const uint8_t *from, size_t size)
{
  uint64_t *out = (uint64_t *)(void *)to;
  const uint64_t *in = (const uint64_t *)(const void *)from;
  for (size_t i = 0; i < size / sizeof *out; i++) {
    out[i] = in[i];
  }
}

/* Copies the arena, or data with one byte for each `ratio` bytes of it. */
static void copy_content(uint8_t *to, const uint8_t *from, size_t ratio)
{
  size_t at = 0;
  for (unsigned i = 0; i < skip_count; i++) {
    copy(to + at / ratio, from + at / ratio, (skips[i].start - at) / ratio);
    at = skips[i].end;
  }
  copy(to + at / ratio, from + at / ratio, (kept_size - at) / ratio);
}

size_t arena_held(void) { return held; }
size_t arena_left(void) { return ARENA_SIZE - used; }

void arena_keep(void)
{
  kept_size = used;
  kept_held = held;
  copy_content(kept, arena, 1);
  copy_content(kept_shadow, shadow(), 8);
}

void arena_restore(void)
{
  inside = false;
  if (used > kept_size) {
    ASAN_POISON_MEMORY_REGION(arena + kept_size, used - kept_size);
  }
  copy_content(shadow(), kept_shadow, 8);
  copy_content(arena, kept, 1);
  used = kept_size;
  held = kept_held;
}
