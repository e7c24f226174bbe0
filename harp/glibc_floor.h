/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built files load on glibc 2.27 and later, whatever version built them. The compiler includes
 * this file before every C file (meson.build).
 *
 * The linker binds a symbol to its newest version on the build machine. glibc 2.34 gave a new
 * version to every symbol that it moved from libpthread, libdl and librt into libc. glibc 2.38 gave
 * another name to strtol and similar functions. The old versions still exist with the same
 * behaviour, so the references name them. In glibc 2.27 the symbols are in libpthread, libdl and
 * librt, so distributed files keep these in their list of needed files (harp/meson.build).
 *
 * glibc_floor.c has functions that an old C library lacks in any version (stat and similar
 * functions before 2.33). glibc_floor_main.c has the start of a program. tests/test_elf.py finds
 * symbols that are too new.
 */
#ifndef HARP_GLIBC_FLOOR_H
#define HARP_GLIBC_FLOOR_H

#ifndef __ASSEMBLER__ /* dpdk_glue/dpdk/dpdk_floor.S names its versions itself */

#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

/* x86-64 has versions since 2.2.5. On 64-bit Arm the first version is 2.17. */
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

/* The name of fcntl with 64-bit file offsets since 2.28; the same call. */
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
