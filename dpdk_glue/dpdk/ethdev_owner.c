/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/dpdk/ethdev_owner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"

enum {
  COMMAND = 4,            /* offset of the command register (PCI 3.0, 6.2.2) */
  COMMAND_BUS_MASTER = 4, /* the device may access memory by itself */
};

void harp_ethdev_owner_init(struct ethdev_owner *owner)
{
  *owner = (struct ethdev_owner){.lock_fd = -1};
}

/* --- The lock and the bus master bit --- */

/* Returns how many files of this driver's devices are open, over all devices and namespaces. -1:
 * unknown, because a built-in driver has no reference count. */
static int openings(const char *driver)
{
  char path[96];
  int count = -1;
  snprintf(path, sizeof(path), "/sys/module/%s/refcnt", driver);
  FILE *file = fopen(path, "re");
  if (file) {
    if (fscanf(file, "%d", &count) != 1) {
      count = -1;
    }
    fclose(file);
  }
  return count;
}

/* Older kernels leave the bus master bit set after a process exits. So the bit counts only while
 * a process has a device of this driver open. */
static bool is_driven(const struct ethdev_owner *owner, const struct ethdev_spec *spec)
{
  uint8_t command = 0;
  if (pread(owner->lock_fd, &command, sizeof(command), COMMAND) != sizeof(command)) {
    return false;
  }
  return command & COMMAND_BUS_MASTER && openings(spec->uio) != 0;
}

/* --- The files that DPDK opens --- */

static bool is_drivers_file(const char *target)
{
  static const char *const beginnings[] = {"/dev/vfio/", "/dev/uio", "anon_inode:[vfio-device"};
  for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
    if (strncmp(target, beginnings[i], strlen(beginnings[i])) == 0) {
      return true;
    }
  }
  return false;
}

static bool is_among(const int *files, unsigned count, int fd)
{
  for (unsigned i = 0; i < count; i++) {
    if (files[i] == fd) {
      return true;
    }
  }
  return false;
}

/* Finds the descriptors of driver files in this process, except those in known. */
static unsigned find_files(int *files, const int *known, unsigned known_count)
{
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/fd");
  for (struct dirent *entry; folder && count < ETHDEV_OWNER_FILES && (entry = readdir(folder));) {
    char target[64];
    ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
    target[length > 0 ? length : 0] = '\0';
    int fd = atoi(entry->d_name);
    if (is_drivers_file(target) && !is_among(known, known_count, fd)) {
      files[count++] = fd;
    }
  }
  if (folder) {
    closedir(folder);
  }
  return count;
}

int harp_ethdev_owner_take(struct ethdev_owner *owner, const struct ethdev_spec *spec, char *error)
{
  char path[160];
  snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", spec->name);
  owner->lock_fd = open(path, O_RDONLY | O_CLOEXEC);
  if (owner->lock_fd >= 0 && flock(owner->lock_fd, LOCK_EX | LOCK_NB) < 0) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%s: another process with HARP uses the device; end "
                          "it, or give this process another NIC",
                          spec->name);
  }
  if (owner->lock_fd >= 0 && spec->uio[0] && is_driven(owner, spec)) {
    return harp_port_fail(error, -EBUSY,
                          "dpdk:%s: another process, perhaps in another container, "
                          "uses the device; end it, or give this process another NIC (if none "
                          "does: setpci -s %s COMMAND=0:4)",
                          spec->name, spec->name);
  }
  owner->other_count = find_files(owner->others, NULL, 0);
  return 0;
}

void harp_ethdev_owner_attached(struct ethdev_owner *owner)
{
  unsigned count = find_files(owner->files, owner->others, owner->other_count);
  for (unsigned i = 0; i < count; i++) {
    fcntl(owner->files[i], F_SETFD, FD_CLOEXEC);
  }
  owner->file_count = count;
}

void harp_ethdev_owner_detaching(struct ethdev_owner *owner) { owner->file_count = 0; }

static void close_lock(struct ethdev_owner *owner)
{
  harp_descriptor_close(owner->lock_fd);
  owner->lock_fd = -1;
}

/* Unlocks explicitly, because a child process may have a copy of the descriptor. */
void harp_ethdev_owner_give(struct ethdev_owner *owner)
{
  if (owner->lock_fd >= 0) {
    flock(owner->lock_fd, LOCK_UN);
  }
  close_lock(owner);
}

/* Closes the lock last, after the device. Otherwise another process could take the NIC first, and
 * the close of the device would stop it for the new owner. */
void harp_ethdev_owner_forget(struct ethdev_owner *owner)
{
  for (unsigned i = 0; i < owner->file_count; i++) {
    close(owner->files[i]);
  }
  owner->file_count = 0;
  close_lock(owner);
}
