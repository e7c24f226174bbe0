/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of equal objects, allocated once. Free objects are chained through
 * their first word; an object's content is undefined after pool_get.
 */
#ifndef HARP_STACK_POOL_H
#define HARP_STACK_POOL_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define HARP_POOL_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HARP_POOL_WATCHED 1
#endif
#endif

/* AddressSanitizer must report any access to a free object beyond its first word. */
#ifdef HARP_POOL_WATCHED
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void)(start), (void)(size))
#endif

struct harp_pool {
  void *free;
  uint8_t *memory;
  size_t size; /* bytes of an object */
  uint32_t total;
  uint32_t available;
};

/* 0 or -ENOMEM. size: bytes of an object, at least a pointer's. */
static inline int pool_create(struct harp_pool *pool, size_t size, uint32_t count)
{
  size = (size + 63) & ~(size_t)63; /* whole cache lines: two objects never share one */
  pool->free = NULL;
  pool->size = size;
  pool->total = pool->available = count;
  pool->memory = aligned_alloc(64, size * count);
  if (!pool->memory) {
    return -ENOMEM;
  }
  for (uint32_t i = count; i-- > 0;) {
    void **object = (void **)(void *)(pool->memory + size * i);
    *object = pool->free;
    pool->free = object;
    ASAN_POISON_MEMORY_REGION(object + 1, size - sizeof *object);
  }
  return 0;
}

static inline void pool_destroy(struct harp_pool *pool) { free(pool->memory); }

/* NULL: none left. */
static inline void *pool_get(struct harp_pool *pool)
{
  void **object = pool->free;
  if (object) {
    pool->free = *object;
    pool->available--;
    ASAN_UNPOISON_MEMORY_REGION(object, pool->size);
  }
  return object;
}

static inline void pool_put(struct harp_pool *pool, void *object)
{
  *(void **)object = pool->free;
  pool->free = object;
  pool->available++;
  ASAN_POISON_MEMORY_REGION((void **)object + 1, pool->size - sizeof(void *));
}

#endif
