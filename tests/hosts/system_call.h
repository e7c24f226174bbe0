/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For preloaded libraries that stand in front of the C library's syscall().
 */
#ifndef HARP_TESTS_HOSTS_SYSTEM_CALL_H
#define HARP_TESTS_HOSTS_SYSTEM_CALL_H

#include <dlfcn.h>
#include <stdarg.h>

enum { SYSTEM_CALL_ARGUMENTS = 6 };

/* Stores the arguments of syscall(number, ...) in a. */
static inline void read_arguments(va_list list, long *a)
{
  for (int i = 0; i < SYSTEM_CALL_ARGUMENTS; i++) {
    a[i] = va_arg(list, long);
  }
}

/* Calls the C library's syscall(). As syscall(2). */
static inline long real_syscall(long number, const long *a)
{
  long (*real)(long, ...);
  *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#endif
