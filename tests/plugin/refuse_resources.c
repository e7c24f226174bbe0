/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library that makes one of the plugin's system requests fail. Requests for memory,
 * threads and descriptors count, and only calls by the plugin itself, not those by the C library on
 * its behalf or by other code of the process.
 *
 * Any thread.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#define EXPORTED __attribute__((visibility("default")))

static atomic_int left; /* calls up to the one that fails; at most 0: none fails */

/* Makes the `number`th call from now on fail; 0: none. Returns the calls that were left before the
 * last such failure; 0: it has happened. */
EXPORTED int stingy_refuse(int number);
int stingy_refuse(int number)
{
  int before = atomic_exchange(&left, number);
  return before > 0 ? before : 0;
}

static bool refused(const void *caller)
{
  Dl_info info;
  if (atomic_load(&left) <= 0 || !dladdr(caller, &info) || !info.dli_fname ||
      !strstr(info.dli_fname, "libnccl-net.so")) {
    return false;
  }
  return atomic_fetch_sub(&left, 1) == 1;
}

/* The C library's own names: dlsym itself would allocate memory. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static void *no_memory(void)
{
  errno = ENOMEM;
  return NULL;
}

EXPORTED void *malloc(size_t size)
{
  return refused(__builtin_return_address(0)) ? no_memory() : __libc_malloc(size);
}

EXPORTED void *calloc(size_t count, size_t size)
{
  return refused(__builtin_return_address(0)) ? no_memory() : __libc_calloc(count, size);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size)
{
  return refused(__builtin_return_address(0)) ? no_memory() : __libc_memalign(alignment, size);
}

EXPORTED void *mmap(void *start, size_t size, int protection, int flags, int fd, off_t offset)
{
  void *(*real)(void *, size_t, int, int, int, off_t);
  *(void **)&real = dlsym(RTLD_NEXT, "mmap");
  if (refused(__builtin_return_address(0))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(start, size, protection, flags, fd, offset);
}

EXPORTED int eventfd(unsigned count, int flags)
{
  int (*real)(unsigned, int);
  *(void **)&real = dlsym(RTLD_NEXT, "eventfd");
  if (refused(__builtin_return_address(0))) {
    errno = EMFILE;
    return -1;
  }
  return real(count, flags);
}

EXPORTED int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*function)(void *), void *argument)
{
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  if (refused(__builtin_return_address(0))) {
    return EAGAIN;
  }
  return real(thread, attributes, function, argument);
}
