/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library whose process exits inside a poll of HARP, as by a signal handler that calls
 * exit: the main thread does so in its next receive call after SIGUSR1.
 *
 * Threads: any.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/hosts/system_call.h"

#define EXPORTED __attribute__((visibility("default")))

static volatile sig_atomic_t exits;

static void on_signal(int number) { exits = 1; }

__attribute__((constructor)) static void begin(void) { signal(SIGUSR1, on_signal); }

EXPORTED long syscall(long number, ...)
{
  long a[SYSTEM_CALL_ARGUMENTS];
  va_list list;
  va_start(list, number);
  read_arguments(list, a);
  va_end(list);
  if (number == SYS_recvmmsg && exits && gettid() == getpid()) {
    exits = 0;
    exit(0);
  }
  return real_syscall(number, a);
}
