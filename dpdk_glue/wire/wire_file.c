/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/wire/wire_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/descriptor.h"
#include "dpdk_glue/fail.h"

#define WIRE_MAGIC UINT64_C(0x31657269772d7068) /* "hp-wire1" */

enum {
  WIRE_VERSION = 1,
  /* Bytes 0 and 1 of the file are the ends. This byte serializes joining and leaving. */
  BYTE_DOOR = WIRE_ENDS,
  DOOR_TRIES = 1000, /* milliseconds; the lock is held for much less */
  JOIN_TRIES = 16,
  MODE = 0600,
};

static bool lock_byte(int fd, int byte, short type)
{
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool byte_held(int fd, int byte)
{
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static bool enter_door(int fd)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  for (int i = 0; i < DOOR_TRIES; i++) {
    if (lock_byte(fd, BYTE_DOOR, F_WRLCK)) {
      return true;
    }
    nanosleep(&pause, NULL);
  }
  return false;
}

static void leave_door(int fd) { lock_byte(fd, BYTE_DOOR, F_UNLCK); }

/* Returns a power of two. */
static size_t ring_bytes(unsigned queues)
{
  size_t share = WIRE_BYTES;
  for (unsigned q = 1; q < queues; q *= 2) {
    share /= 2;
  }
  return share;
}

static size_t header_bytes(void) { return (sizeof(struct wire_header) + 4095) & ~(size_t)4095; }

static size_t file_bytes(unsigned queues)
{
  return header_bytes() + WIRE_ENDS * ring_bytes(queues) * queues * queues;
}

uint8_t *harp_wire_bytes(const struct wire_file *file, int end, unsigned from, unsigned to)
{
  size_t index = ((size_t)end * file->queues + from) * file->queues + to;
  return file->data + index * file->ring_bytes;
}

static void doorbell_path(const struct wire_file *file, int end, unsigned queue, char *path)
{
  snprintf(path, PATH_MAX, "%s.%d.%u", file->path, end, queue);
}

/* The last end removes the file. So between open and the lock the name may have disappeared or
 * may name another file. */
static bool still_named(const struct wire_file *file)
{
  struct stat open_file, named;
  return fstat(file->fd, &open_file) == 0 && stat(file->path, &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

/* Allocates the memory now, so that a full /dev/shm is an error of open and not a SIGBUS at the
 * first frame. */
static int create(struct wire_file *file, unsigned queues, char *error)
{
  size_t size = file_bytes(queues);
  if (ftruncate(file->fd, 0) < 0) {
    return harp_port_fail(error, -errno, "wire:%s: cannot empty the file: %s", file->path,
                          strerror(errno));
  }
  int failed = posix_fallocate(file->fd, 0, (off_t)size);
  if (failed) {
    return harp_port_fail(error, -failed,
                          "wire:%s: no room for %zu MiB: %s; free some, or name a path on "
                          "another file system",
                          file->path, size >> 20, strerror(failed));
  }
  struct {
    uint64_t magic;
    uint32_t version, queues;
  } head = {WIRE_MAGIC, WIRE_VERSION, queues};
  if (pwrite(file->fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head)) {
    return harp_port_fail(error, -EIO, "wire:%s: cannot write the file", file->path);
  }
  for (int end = 0; end < WIRE_ENDS; end++) {
    for (unsigned q = 0; q < WIRE_QUEUES; q++) {
      char path[PATH_MAX];
      doorbell_path(file, end, q, path);
      unlink(path); /* left by a killed pair, which may have had more queues */
      if (q < queues && mkfifo(path, MODE) < 0) {
        return harp_port_fail(error, -errno, "wire:%s: cannot make the doorbell %s: %s", file->path,
                              path, strerror(errno));
      }
    }
  }
  return 0;
}

static int map(struct wire_file *file, unsigned queues, char *error)
{
  struct stat status;
  file->queues = queues;
  file->size = file_bytes(queues);
  file->ring_bytes = ring_bytes(queues);
  void *mapping = MAP_FAILED;
  if (fstat(file->fd, &status) == 0 && (size_t)status.st_size >= header_bytes()) {
    mapping = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
  }
  if (mapping == MAP_FAILED) {
    return harp_port_fail(error, -EINVAL,
                          "wire:%s: not a wire's file; name a path that does not exist yet",
                          file->path);
  }
  file->header = mapping;
  file->data = (uint8_t *)mapping + header_bytes();
  const struct wire_header *header = file->header;
  if (header->magic != WIRE_MAGIC || header->version != WIRE_VERSION) {
    return harp_port_fail(error, -EINVAL,
                          "wire:%s: not a wire's file of this release; remove it, or use the same "
                          "release at both ends",
                          file->path);
  }
  if (header->queues != queues || (size_t)status.st_size < file->size) {
    return harp_port_fail(error, -EINVAL,
                          "wire:%s: the other end has %u instances and this one %u; give both the "
                          "same number",
                          file->path, header->queues, queues);
  }
  return 0;
}

static int open_doorbells(struct wire_file *file, char *error)
{
  for (int end = 0; end < WIRE_ENDS; end++) {
    for (unsigned q = 0; q < file->queues; q++) {
      char path[PATH_MAX];
      doorbell_path(file, end, q, path);
      /* O_RDWR, so that open never blocks without the other side and a write never fails with
       * EPIPE. */
      int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
      if (fd < 0) {
        return harp_port_fail(error, -errno, "wire:%s: cannot open the doorbell %s: %s", file->path,
                              path, strerror(errno));
      }
      file->doorbells[end][q] = fd;
    }
  }
  return 0;
}

/* Discards frames and state from before this end joined. */
static void forget_past(struct wire_file *file)
{
  for (unsigned from = 0; from < file->queues; from++) {
    atomic_store(&file->header->sleepers[file->end][from].asleep, 0);
    for (unsigned to = 0; to < file->queues; to++) {
      struct wire_ring *in = &file->header->rings[!file->end][from][to];
      atomic_store(&in->consumed, atomic_load(&in->written));
    }
  }
}

static void let_go(struct wire_file *file)
{
  for (int end = 0; end < WIRE_ENDS; end++) {
    for (unsigned q = 0; q < WIRE_QUEUES; q++) {
      if (file->doorbells[end][q] >= 0) {
        close(file->doorbells[end][q]);
        file->doorbells[end][q] = -1;
      }
    }
  }
  if (file->header) {
    munmap(file->header, file->size);
  }
  file->header = NULL;
  harp_descriptor_close(file->fd);
  file->fd = -1;
}

/* The caller holds the lock on BYTE_DOOR. 0, or a negative errno with one line in error. */
static int take_end(struct wire_file *file, unsigned queues, char *error)
{
  bool alone = !byte_held(file->fd, 0) && !byte_held(file->fd, 1);
  int rc = alone ? create(file, queues, error) : 0;
  if (rc == 0) {
    rc = map(file, queues, error);
  }
  if (rc == 0) {
    rc = open_doorbells(file, error);
  }
  if (rc < 0) {
    return rc;
  }
  for (file->end = 0; file->end < WIRE_ENDS; file->end++) {
    if (lock_byte(file->fd, file->end, F_WRLCK)) {
      forget_past(file);
      return 0;
    }
  }
  return harp_port_fail(error, -EBUSY,
                        "wire:%s: both ends are held by running processes; end one of them or "
                        "name another path",
                        file->path);
}

static void reset(struct wire_file *file, const char *path)
{
  memset(file, 0, sizeof(*file));
  snprintf(file->path, sizeof(file->path), "%s", path);
  memset(file->doorbells, 0xff, sizeof(file->doorbells));
  file->fd = -1;
}

int harp_wire_join(struct wire_file *file, const char *path, unsigned queues, char *error)
{
  if (!path[0] || strlen(path) >= sizeof(file->path)) {
    return harp_port_fail(error, -EINVAL,
                          "wire:%.150s: name a file of 1 to %zu characters, as in "
                          "wire:/dev/shm/w0",
                          path, sizeof(file->path) - 1);
  }
  if (queues < 1 || queues > WIRE_QUEUES) {
    return harp_port_fail(error, -EINVAL, "wire:%s: instances = %u; a wire takes 1 to %d", path,
                          queues, WIRE_QUEUES);
  }
  for (int i = 0; i < JOIN_TRIES; i++) {
    reset(file, path);
    file->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (file->fd < 0) {
      return harp_port_fail(error, -errno,
                            "wire:%s: cannot open the file: %s; name a path in a folder that "
                            "both processes may write to",
                            path, strerror(errno));
    }
    if (!enter_door(file->fd)) {
      break;
    }
    if (!still_named(file)) {
      let_go(file);
      continue;
    }
    int rc = take_end(file, queues, error);
    leave_door(file->fd);
    if (rc < 0) {
      let_go(file);
    }
    return rc;
  }
  let_go(file);
  return harp_port_fail(error, -EBUSY,
                        "wire:%s: another process keeps the file locked; end it or name another "
                        "path",
                        path);
}

void harp_wire_leave(struct wire_file *file)
{
  bool last = enter_door(file->fd) && !byte_held(file->fd, !file->end) && still_named(file);
  if (last) {
    for (int end = 0; end < WIRE_ENDS; end++) {
      for (unsigned q = 0; q < file->queues; q++) {
        char path[PATH_MAX];
        doorbell_path(file, end, q, path);
        unlink(path);
      }
    }
    unlink(file->path);
  }
  let_go(file); /* closing the descriptor releases all locks */
}

/* An end stays taken while any descriptor or mapping refers to the open file, so a child drops
 * both. */
void harp_wire_forget(struct wire_file *file) { let_go(file); }

void harp_wire_wake(const struct wire_file *file, int end, unsigned queue)
{
  struct wire_sleeper *sleeper = &file->header->sleepers[end][queue];
  if (!atomic_load_explicit(&sleeper->asleep, memory_order_relaxed) ||
      !atomic_exchange(&sleeper->asleep, 0)) {
    return;
  }
  /* The write fails only if the FIFO is full, and then the reader is already woken. */
  ssize_t rung = write(file->doorbells[end][queue], "", 1);
  (void)rung;
}

void harp_wire_quiet(const struct wire_file *file, unsigned queue)
{
  char rings[64];
  while (read(file->doorbells[file->end][queue], rings, sizeof(rings)) == (ssize_t)sizeof(rings)) {
    continue;
  }
}
