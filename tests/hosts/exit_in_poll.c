/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library whose process exits inside a poll of HARP, as by a signal handler that calls
 * exit: the main thread does so in its next receive call after SIGUSR1.
 *
 * Threads: any.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static volatile sig_atomic_t exits;

static void on_signal(int number) { exits = 1; }

__attribute__((constructor)) static void begin(void) { signal(SIGUSR1, on_signal); }

EXPORTED long syscall(long number, ...)
{
  long (*real)(long, ...);
  *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) {
    a[i] = va_arg(list, long);
  }
  va_end(list);
  if (number == SYS_recvmmsg && exits && gettid() == getpid()) {
    exits = 0;
    exit(0);
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
