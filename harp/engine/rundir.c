/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harp/engine/rundir.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u /* since Linux 6.3; a host may demand it (vm.memfd_noexec) */
#endif

enum {
  TRACES_KEPT = 32,
  NEW_FILE_SECONDS = 60, /* a younger .new file may not be locked yet */
  ID_LENGTH = 16,
  ENTRIES_MOST = 8192, /* of a folder that other users fill: those that HARP looks at */
};

static const char shared_memory[] = "/dev/shm";

const char *harp_rundir_configured(void)
{
  const char *folder = getenv("HARP_RUN_DIR");

  return folder && *folder ? folder : HARP_RUN_DIR_DEFAULT;
}

/* Whether a folder belongs to this user: 0, or a negative errno. Every user may write to /dev/shm,
 * so another user may have created a link or a folder with this name. */
static int check_owner(const char *folder)
{
  struct stat status;

  if (lstat(folder, &status) < 0) {
    return -errno;
  }
  return S_ISDIR(status.st_mode) && status.st_uid == geteuid() ? 0 : -EPERM;
}

/* Whether HARP has created the file: the name is sixteen hexadecimal digits and the suffix. Other
 * programs' files must not be removed. */
static bool is_ours(const char *name, const char *suffix)
{
  return strspn(name, "0123456789abcdef") == ID_LENGTH && strcmp(name + ID_LENGTH, suffix) == 0;
}

/* Finds a folder that a process of this user has made with a random name, or makes one. */
static int random_fallback(char *out, size_t size)
{
  DIR *entries = opendir(shared_memory);
  struct dirent *entry;
  char start[32];
  uint64_t id;

  snprintf(start, sizeof(start), "harp-%u-", (unsigned)geteuid());
  for (int i = 0; entries && i < ENTRIES_MOST && (entry = readdir(entries)); i++) {
    const char *digits = entry->d_name + strlen(start);

    if (strncmp(entry->d_name, start, strlen(start)) != 0 || !is_ours(digits, "")) {
      continue;
    }
    snprintf(out, size, "%s/%s%.*s", shared_memory, start, ID_LENGTH, digits);
    if (check_owner(out) == 0) {
      closedir(entries);
      return 0;
    }
  }
  if (entries) {
    closedir(entries);
  }
  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
    return -EIO;
  }
  snprintf(out, size, "%s/%s%016llx", shared_memory, start, (unsigned long long)id);
  return mkdir(out, 0755) < 0 ? -errno : 0;
}

int harp_rundir_fallback(char *out, size_t size)
{
  int rc;

  snprintf(out, size, "%s/harp-%u", shared_memory, (unsigned)geteuid());
  if (mkdir(out, 0755) < 0 && errno != EEXIST) {
    return -errno;
  }
  rc = check_owner(out);
  return rc == -EPERM ? random_fallback(out, size) : rc;
}

static int reserve(int fd, size_t size)
{
  int rc;

  if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
    return -errno;
  }
  do {
    rc = posix_fallocate(fd, 0, (off_t)size);
  } while (rc == EINTR);
  return -rc;
}

int harp_rundir_create(const char *configured, size_t size, char path[HARP_RUN_PATH_SIZE])
{
  uint64_t id;
  int fd, rc;

  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
    return -EIO;
  }
  if (snprintf(path, HARP_RUN_PATH_SIZE, "%s/%016llx.new", configured, (unsigned long long)id) >=
      HARP_RUN_PATH_SIZE - 8) {
    return -ENAMETOOLONG;
  }
  /* Nobody else may open the file before it is locked: another user could lock it first. */
  fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return -errno;
  }
  rc = reserve(fd, size);
  if (rc) {
    unlink(path);
    close(fd);
    return rc;
  }
  fchmod(fd, 0644); /* if it fails, root and this user still read the file */
  return fd;
}

int harp_rundir_create_in_memory(size_t size)
{
  char name[32];
  uint64_t id;
  int fd, rc;

  if (getrandom(&id, sizeof(id), 0) != sizeof(id)) {
    return -EIO;
  }
  snprintf(name, sizeof(name), "%016llx.stat", (unsigned long long)id);
  fd = memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create(name, MFD_CLOEXEC);
  }
  if (fd < 0) {
    return -errno;
  }
  rc = reserve(fd, size);
  if (rc) {
    close(fd);
    return rc;
  }
  return fd;
}

int harp_rundir_publish(char path[HARP_RUN_PATH_SIZE], const char *suffix)
{
  char final[HARP_RUN_PATH_SIZE];
  int stem = (int)(strlen(path) - strlen(".new"));

  snprintf(final, sizeof(final), "%.*s%s", stem, path, suffix);
  if (rename(path, final) < 0) {
    return -errno;
  }
  memcpy(path, final, sizeof(final));
  return 0;
}

static bool is_our_socket(const char *name)
{
  size_t digits;

  if (strspn(name, "0123456789abcdef") != ID_LENGTH || name[ID_LENGTH] != '-') {
    return false;
  }
  name += ID_LENGTH + 1;
  digits = strspn(name, "0123456789");
  return digits > 0 && strcmp(name + digits, ".capture") == 0;
}

/* Removes a file without a lock: a live owner holds a lock on it. min_age: seconds since the last
 * write; 0 also removes a file whose time lies ahead of the clock. */
static void remove_if_dead(int folder, const char *name, time_t min_age)
{
  int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat status;

  if (fd < 0) {
    return;
  }
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
      (min_age == 0 || time(NULL) - status.st_mtime >= min_age) &&
      flock(fd, LOCK_EX | LOCK_NB) == 0) {
    unlinkat(folder, name, 0);
  }
  close(fd);
}

/* Removes a socket if the process is dead that has the statistics file beside it. */
static void remove_socket_if_dead(int folder, const char *name)
{
  struct stat status;
  char file[32];
  int fd;

  if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISSOCK(status.st_mode)) {
    return;
  }
  snprintf(file, sizeof(file), "%.*s.stat", ID_LENGTH, name);
  fd = openat(folder, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 ? errno == ENOENT : flock(fd, LOCK_EX | LOCK_NB) == 0) {
    unlinkat(folder, name, 0);
  }
  if (fd >= 0) {
    close(fd);
  }
}

struct trace_file {
  char name[32];
  time_t written;
};

/* Adds a trace of this user to the newest ones. Removes the file of the trace that drops out of
 * them. Traces of other users do not count: such users could make any number, with any time. */
static void keep_newest(int folder, struct trace_file kept[TRACES_KEPT], const char *name)
{
  struct trace_file candidate = {.written = 0};
  struct stat status;

  if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != geteuid()) {
    return;
  }
  candidate.written = status.st_mtime;
  memcpy(candidate.name, name, strlen(name) + 1); /* is_ours has checked the length */
  for (int i = 0; i < TRACES_KEPT; i++) {
    if (candidate.written > kept[i].written) {
      struct trace_file pushed = kept[i];
      kept[i] = candidate;
      candidate = pushed;
    }
  }
  if (candidate.name[0]) {
    unlinkat(folder, candidate.name, 0);
  }
}

/* Whether this user removes the entry: its own ones, and root all. The run folder's mode protects
 * those of other users. They may be many, so they are not opened. */
static bool may_remove(int folder, const char *name)
{
  struct stat status;

  return geteuid() == 0 ||
         (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && status.st_uid == geteuid());
}

void harp_rundir_sweep(const char *folder)
{
  struct trace_file kept[TRACES_KEPT] = {{{0}, 0}};
  DIR *entries = opendir(folder);
  struct dirent *entry;

  if (!entries) {
    return;
  }
  for (int i = 0; i < ENTRIES_MOST && (entry = readdir(entries)); i++) {
    if (!may_remove(dirfd(entries), entry->d_name)) {
      continue;
    }
    if (is_ours(entry->d_name, ".stat")) {
      remove_if_dead(dirfd(entries), entry->d_name, 0);
    } else if (is_ours(entry->d_name, ".new")) {
      remove_if_dead(dirfd(entries), entry->d_name, NEW_FILE_SECONDS);
    } else if (is_our_socket(entry->d_name)) {
      remove_socket_if_dead(dirfd(entries), entry->d_name);
    } else if (is_ours(entry->d_name, ".trace")) {
      keep_newest(dirfd(entries), kept, entry->d_name);
    }
  }
  closedir(entries);
}
