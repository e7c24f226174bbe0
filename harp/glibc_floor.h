/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oldest C library that the built files load on is glibc 2.27, however new
 * the one is that they were built with. The compiler includes this file in
 * front of every C file (meson.build).
 *
 * A symbol binds to its newest version on the building machine. 2.34 gave a
 * new version to everything that moved from libpthread, libdl and librt into
 * libc, and 2.38 another name to strtol and its kin; the old versions are
 * still there with the same behaviour, so the references name them.
 * On a 2.27 the symbols live in the files that they moved from, so what is
 * given away keeps those among the files it needs (harp/meson.build).
 *
 * Functions that an old C library has under no version (stat and its kin
 * before 2.33) are in glibc_floor.c, how a program begins in glibc_floor_main.c.
 * tests/test_elf.py finds what is missing.
 */
#ifndef HARP_GLIBC_FLOOR_H
#define HARP_GLIBC_FLOOR_H

#ifndef __ASSEMBLER__ /* which names its versions itself: dpdk_glue/dpdk/dpdk_floor.S */

#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

/* x86-64 has versions since 2.2.5; everything on 64-bit Arm began with 2.17. */
#ifdef __x86_64__
#define HARP_OLD(name, old, version) __asm__(".symver " #name ", " #old "@GLIBC_" version)
#else
#define HARP_OLD(name, old, version) __asm__(".symver " #name ", " #old "@GLIBC_2.17")
#endif

HARP_OLD(dlopen, dlopen, "2.2.5");
HARP_OLD(dlsym, dlsym, "2.2.5");
HARP_OLD(dlclose, dlclose, "2.2.5");
HARP_OLD(dlerror, dlerror, "2.2.5");
HARP_OLD(dladdr, dladdr, "2.2.5");

HARP_OLD(pthread_create, pthread_create, "2.2.5");
HARP_OLD(pthread_join, pthread_join, "2.2.5");
HARP_OLD(pthread_detach, pthread_detach, "2.2.5");
HARP_OLD(pthread_kill, pthread_kill, "2.2.5");
HARP_OLD(pthread_once, pthread_once, "2.2.5");
HARP_OLD(pthread_key_create, pthread_key_create, "2.2.5");
HARP_OLD(pthread_key_delete, pthread_key_delete, "2.2.5");
HARP_OLD(pthread_getspecific, pthread_getspecific, "2.2.5");
HARP_OLD(pthread_setspecific, pthread_setspecific, "2.2.5");
HARP_OLD(pthread_sigmask, pthread_sigmask, "2.2.5");
HARP_OLD(pthread_mutex_trylock, pthread_mutex_trylock, "2.2.5");
HARP_OLD(pthread_mutexattr_init, pthread_mutexattr_init, "2.2.5");
HARP_OLD(pthread_mutexattr_destroy, pthread_mutexattr_destroy, "2.2.5");
HARP_OLD(pthread_mutexattr_settype, pthread_mutexattr_settype, "2.2.5");
HARP_OLD(pthread_attr_setstacksize, pthread_attr_setstacksize, "2.2.5");
HARP_OLD(pthread_condattr_setclock, pthread_condattr_setclock, "2.3.3");
HARP_OLD(pthread_getaffinity_np, pthread_getaffinity_np, "2.3.4");
HARP_OLD(pthread_setaffinity_np, pthread_setaffinity_np, "2.3.4");
HARP_OLD(pthread_setname_np, pthread_setname_np, "2.12");

HARP_OLD(sem_init, sem_init, "2.2.5");
HARP_OLD(sem_destroy, sem_destroy, "2.2.5");
HARP_OLD(sem_post, sem_post, "2.2.5");
HARP_OLD(sem_wait, sem_wait, "2.2.5");
HARP_OLD(sem_timedwait, sem_timedwait, "2.2.5");
HARP_OLD(shm_open, shm_open, "2.2.5");
HARP_OLD(shm_unlink, shm_unlink, "2.2.5");

/* fcntl's own name since 2.28 where file offsets have 64 bits: the same call. */
HARP_OLD(fcntl64, fcntl, "2.2.5");

HARP_OLD(__isoc23_strtol, strtol, "2.2.5");
HARP_OLD(__isoc23_strtoul, strtoul, "2.2.5");
HARP_OLD(__isoc23_strtoll, strtoll, "2.2.5");
HARP_OLD(__isoc23_strtoull, strtoull, "2.2.5");
HARP_OLD(__isoc23_sscanf, __isoc99_sscanf, "2.7");
HARP_OLD(__isoc23_fscanf, __isoc99_fscanf, "2.7");

#undef HARP_OLD

#endif

#endif

#endif
