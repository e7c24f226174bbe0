/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library that makes one request of HARP's plugin for memory, a thread or a descriptor
 * fail. Only calls from the plugin itself count, not those of the C library on its behalf or of
 * other code in the process.
 *
 * Threads: any.
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

static atomic_int left; /* calls until the one that fails; at most 0: none fails */

/* Makes the `number`th call from now on fail; 0: none. Returns the number of calls that were
 * still to be counted; 0 if the requested call has already failed. */
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

/* The C library's internal names, because dlsym itself would allocate memory. */
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
