/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Program start for C libraries older than 2.34. The start file of a newer library references
 * __libc_start_main@GLIBC_2.34, which calls the constructors itself. This file calls the old
 * version, which all libraries have, and passes it the constructors. Linked with
 * --wrap=__libc_start_main. Runs before main, in main's thread.
 */
#include <features.h>
#include <stddef.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start, __libc_start_main@GLIBC_2.17");
#endif

typedef void (*constructor)(int argc, char **argv, char **environment);
extern const constructor __preinit_array_start[], __preinit_array_end[];
extern const constructor __init_array_start[], __init_array_end[];

static void constructors(int argc, char **argv, char **environment)
{
  for (const constructor *c = __preinit_array_start; c < __preinit_array_end; c++) {
    (*c)(argc, argv, environment);
  }
  for (const constructor *c = __init_array_start; c < __init_array_end; c++) {
    (*c)(argc, argv, environment);
  }
}

int old_start(int (*program)(int, char **, char **), int argc, char **argv, constructor init,
              void (*fini)(void), void (*loader_fini)(void), void *stack_end);
int __wrap___libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                             void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                             void *stack_end);

int __wrap___libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                             void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                             void *stack_end)
{
  /* A start file older than 2.34 passes its own init. */
  return old_start(program, argc, argv, init ? (constructor)init : constructors, fini, loader_fini,
                   stack_end);
}

#endif
