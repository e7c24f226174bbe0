/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/nc/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIPE_SIZE = 1 << 20 }; /* bytes; the default limit for users without privilege */

/* A pipe or terminal that is opened again has its own flags. */
static int open_anew(int fd, int flags)
{
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static struct nc_stream stream_of(int fd, int flags)
{
  struct nc_stream stream = {fd, NC_STREAM_FILE};
  struct stat status;
  if (fstat(fd, &status) < 0 || S_ISREG(status.st_mode)) {
    return stream;
  }
  if (S_ISSOCK(status.st_mode)) {
    stream.kind = NC_STREAM_SOCKET;
    return stream;
  }
  if (S_ISFIFO(status.st_mode)) {
    fcntl(fd, F_SETPIPE_SZ, PIPE_SIZE); /* fewer context switches; a failure does no harm */
  }
  int own = open_anew(fd, flags);
  stream.kind = own < 0 ? NC_STREAM_SHARED : NC_STREAM_OWN;
  stream.fd = own < 0 ? fd : own;
  return stream;
}

struct nc_stream nc_stream_input(int fd) { return stream_of(fd, O_RDONLY); }

struct nc_stream nc_stream_output(int fd) { return stream_of(fd, O_WRONLY); }

void nc_stream_close(struct nc_stream *stream)
{
  if (stream->kind == NC_STREAM_OWN) {
    close(stream->fd);
  }
  stream->fd = -1;
}

static bool ready(int fd, short events)
{
  struct pollfd poll_fd = {.fd = fd, .events = events};
  return poll(&poll_fd, 1, 0) > 0;
}

static ssize_t result_of(ssize_t done)
{
  if (done >= 0) {
    return done;
  }
  return errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

ssize_t nc_stream_read(const struct nc_stream *stream, void *data, size_t length)
{
  if (stream->kind == NC_STREAM_SOCKET) {
    return result_of(recv(stream->fd, data, length, MSG_DONTWAIT));
  }
  if (stream->kind == NC_STREAM_SHARED && !ready(stream->fd, POLLIN)) {
    return -EAGAIN;
  }
  return result_of(read(stream->fd, data, length));
}

ssize_t nc_stream_write(const struct nc_stream *stream, const void *data, size_t length)
{
  if (stream->kind == NC_STREAM_SOCKET) {
    return result_of(send(stream->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL));
  }
  if (stream->kind == NC_STREAM_SHARED) {
    if (!ready(stream->fd, POLLOUT)) {
      return -EAGAIN;
    }
    /* A pipe that poll() reports writable takes this much without blocking (pipe(7)). */
    length = length < PIPE_BUF ? length : PIPE_BUF;
  }
  return result_of(write(stream->fd, data, length));
}
