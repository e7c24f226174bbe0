/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library that simulates a run folder on a slow file system, such as NFS. The rename of
 * a trace to its final name takes SLOW_TRACE_MS milliseconds. Other calls are not slow.
 *
 * Threads: any.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int rename(const char *from, const char *to)
{
  int (*real)(const char *, const char *);
  *(void **)&real = dlsym(RTLD_NEXT, "rename");
  const char *end = strrchr(to, '.');
  const char *slow = getenv("SLOW_TRACE_MS");
  if (slow && end && strcmp(end, ".trace") == 0) {
    long ms = atol(slow);
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
  }
  return real(from, to);
}

/* Lets a process check that this library is preloaded. */
EXPORTED const int slow_is_here = 1;
