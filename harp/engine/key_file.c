/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(char *error, int result, const char *path, const char *what)
{
  snprintf(
      error, HARP_KEY_FILE_ERROR_SIZE,
      "HARP_KEY_FILE %.200s: %s; make one with 'head -c 32 /dev/urandom | base64 > FILE', copy "
      "it to every host of the job, and let its user read it",
      path, what);
  return result;
}

/* Reads at most size bytes. Returns the bytes read, or a negative errno. */
static ssize_t read_whole(int descriptor, uint8_t *bytes, size_t size)
{
  size_t total = 0;
  while (total < size) {
    ssize_t count = read(descriptor, bytes + total, size - total);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return -errno;
    }
    if (count == 0) {
      break;
    }
    total += (size_t)count;
  }
  return (ssize_t)total;
}

static size_t without_line_end(const uint8_t *bytes, size_t size)
{
  while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r')) {
    size--;
  }
  return size;
}

int harp_key_file_read(struct harp_key_file *file, const char *path, char *error)
{
  struct stat status;
  file->length = 0;
  file->loose = false;
  /* O_NONBLOCK: a pipe without a writer must not block init. */
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    int result = -errno;
    if (descriptor >= 0) {
      close(descriptor);
    }
    return refuse(error, result, path, strerror(-result));
  }
  ssize_t size = read_whole(descriptor, file->bytes, sizeof file->bytes);
  close(descriptor);
  if (size < 0) {
    return refuse(error, (int)size, path, strerror((int)-size));
  }
  if (size > HARP_KEY_FILE_MAX) {
    return refuse(error, -EINVAL, path, "a key has at most 4096 bytes");
  }
  file->length = without_line_end(file->bytes, (size_t)size);
  if (file->length < HARP_KEY_FILE_MIN) {
    return refuse(error, -EINVAL, path, "a key has at least 16 bytes");
  }
  file->loose = (status.st_mode & (S_IROTH | S_IWOTH)) != 0;
  return 0;
}
