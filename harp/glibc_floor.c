/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat and similar functions for C libraries older than 2.33. Those export only the calls below,
 * which take the version of struct stat as first argument. Newer libraries keep them for old
 * binaries. The functions here are hidden symbols, so only the objects linked with this file use
 * them.
 */
#include <sys/stat.h>

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33) && (defined(__x86_64__) || defined(__aarch64__))

/* The version of struct stat for the kernel's 64-bit system calls. */
#ifdef __x86_64__
#define STAT_VERSION 1
__asm__(".symver old_stat, __xstat@GLIBC_2.2.5");
__asm__(".symver old_fstat, __fxstat@GLIBC_2.2.5");
__asm__(".symver old_lstat, __lxstat@GLIBC_2.2.5");
__asm__(".symver old_fstatat, __fxstatat@GLIBC_2.4");
#else
#define STAT_VERSION 0
__asm__(".symver old_stat, __xstat@GLIBC_2.17");
__asm__(".symver old_fstat, __fxstat@GLIBC_2.17");
__asm__(".symver old_lstat, __lxstat@GLIBC_2.17");
__asm__(".symver old_fstatat, __fxstatat@GLIBC_2.17");
#endif

int old_stat(int version, const char *path, struct stat *st);
int old_fstat(int version, int fd, struct stat *st);
int old_lstat(int version, const char *path, struct stat *st);
int old_fstatat(int version, int folder, const char *path, struct stat *st, int flags);

int stat(const char *path, struct stat *st) { return old_stat(STAT_VERSION, path, st); }

int fstat(int fd, struct stat *st) { return old_fstat(STAT_VERSION, fd, st); }

/* Code compiled without 64-bit offsets (libsodium's archive) calls fstat by this name. The
 * structure is the same. */
int plain_fstat(int fd, struct stat *st) __asm__("fstat");
int plain_fstat(int fd, struct stat *st) { return old_fstat(STAT_VERSION, fd, st); }

int lstat(const char *path, struct stat *st) { return old_lstat(STAT_VERSION, path, st); }

int fstatat(int folder, const char *path, struct stat *st, int flags)
{
  return old_fstatat(STAT_VERSION, folder, path, st, flags);
}

#endif
