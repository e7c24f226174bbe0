/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "harp/engine/lock_holder.h"

/* A file's identity in /proc/locks. */
struct identity {
  unsigned major, minor;
  unsigned long long inode;
};

/* The id of the mount through which a file was opened; -1: unknown. */
static int mount_of(int fd)
{
  char path[48], line[128];
  int mount = -1;
  FILE *file;

  snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
  file = fopen(path, "re");
  if (!file) {
    return -1;
  }
  while (mount < 0 && fgets(line, sizeof(line), file)) {
    if (sscanf(line, "mnt_id: %d", &mount) != 1) {
      mount = -1;
    }
  }
  fclose(file);
  return mount;
}

/* Takes the device from the list of mounts: for overlayfs and btrfs, stat reports another device
 * than /proc/locks. */
static void find_device(int mount, struct identity *identity)
{
  char line[4096];
  unsigned major, minor;
  int id;
  FILE *file = fopen("/proc/self/mountinfo", "re");

  if (!file) {
    return;
  }
  while (fgets(line, sizeof(line), file)) {
    if (sscanf(line, "%d %*d %u:%u ", &id, &major, &minor) == 3 && id == mount) {
      identity->major = major;
      identity->minor = minor;
      break;
    }
  }
  fclose(file);
}

static int find_identity(int fd, struct identity *identity)
{
  struct stat status;

  if (fstat(fd, &status) < 0) {
    return -1;
  }
  *identity = (struct identity){major(status.st_dev), minor(status.st_dev), status.st_ino};
  find_device(mount_of(fd), identity);
  return 0;
}

/* The pid of the process that holds the lock; 0: unknown. */
static int holder_of(const struct identity *wanted)
{
  struct identity locked;
  char line[256], kind[16];
  int pid, holder = 0;
  FILE *file = fopen("/proc/locks", "re");

  if (!file) {
    return 0;
  }
  while (holder == 0 && fgets(line, sizeof(line), file)) {
    if (sscanf(line, "%*s %15s %*s %*s %d %x:%x:%llu", kind, &pid, &locked.major, &locked.minor,
               &locked.inode) == 5 &&
        strcmp(kind, "FLOCK") == 0 && locked.inode == wanted->inode &&
        locked.major == wanted->major && locked.minor == wanted->minor && pid > 0) {
      holder = pid;
    }
  }
  fclose(file);
  return holder;
}

/* A process chooses its own name, so characters that a terminal may interpret are replaced. */
static void name_of_process(int pid, char *out, size_t size)
{
  char path[48];
  FILE *file;

  snprintf(path, sizeof(path), "/proc/%d/comm", pid);
  snprintf(out, size, "?");
  file = fopen(path, "re");
  if (!file) {
    return;
  }
  if (fgets(out, (int)size, file)) {
    out[strcspn(out, "\n")] = '\0';
  }
  fclose(file);
  for (; *out; out++) {
    if (*out < ' ' || *out > '~') {
      *out = '?';
    }
  }
}

/* The effective user of a process; -1: unknown. The owner of /proc/PID is no substitute: it may be
 * root for a process that has changed its user. */
static long user_of_process(int pid)
{
  char path[48], line[128];
  unsigned uid;
  long found = -1;
  FILE *file;

  snprintf(path, sizeof(path), "/proc/%d/status", pid);
  file = fopen(path, "re");
  if (!file) {
    return -1;
  }
  while (found < 0 && fgets(line, sizeof(line), file)) {
    if (sscanf(line, "Uid: %*u %u", &uid) == 1) {
      found = uid;
    }
  }
  fclose(file);
  return found;
}

void harp_lock_holder(int fd, char *out, size_t size)
{
  struct identity identity;
  char name[32];
  long user;
  int pid = find_identity(fd, &identity) < 0 ? 0 : holder_of(&identity);

  if (!pid) {
    snprintf(out, size, "an unknown process");
    return;
  }
  name_of_process(pid, name, sizeof(name));
  user = user_of_process(pid);
  if (user >= 0 && user != (long)geteuid()) {
    snprintf(out, size, "process %d (%s) of user %ld", pid, name, user);
  } else {
    snprintf(out, size, "process %d (%s)", pid, name);
  }
}
