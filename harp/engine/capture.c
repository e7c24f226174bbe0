/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  SEND_BUFFER = 4 << 20, /* bytes; the kernel allows net.core.wmem_max */
  WAITING = 16,          /* readers that have connected since the last call */
  PIECES = 64,           /* of a frame; readers miss the bytes of further ones */
};

/* Binds a socket to a path that may be longer than an address. */
static int bind_at(int fd, const char *path)
{
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *slash = strrchr(path, '/');
  char folder[HARP_RUN_PATH_SIZE];
  snprintf(folder, sizeof folder, "%.*s", (int)(slash - path + 1), path);
  int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) {
    return -errno;
  }
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d%s", at, slash);
  int result = bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
  close(at);
  return result;
}

int harp_capture_open(struct harp_capture *capture, const char *statistics, unsigned instance)
{
  const char *suffix = strrchr(statistics, '.');
  *capture = (struct harp_capture){.listener = -1};
  if (!suffix || !strchr(statistics, '/')) {
    return -ENOENT; /* the file is in memory */
  }
  char path[HARP_RUN_PATH_SIZE];
  if (snprintf(path, sizeof path, "%.*s-%u.capture", (int)(suffix - statistics), statistics,
               instance) >= (int)sizeof path) {
    return -ENAMETOOLONG;
  }
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -errno;
  }
  /* The path gets the mode of the socket: no other user can connect at any time. */
  fchmod(fd, 0600);
  int result = bind_at(fd, path);
  if (result == 0) {
    memcpy(capture->path, path, sizeof path);
    result = listen(fd, WAITING) < 0 ? -errno : 0;
  }
  capture->listener = fd;
  if (result != 0) {
    harp_capture_close(capture);
  }
  return result;
}

static void drop(struct harp_capture *capture, unsigned index)
{
  close(capture->readers[index].fd);
  capture->readers[index] = capture->readers[--capture->count];
}

void harp_capture_forget(struct harp_capture *capture)
{
  while (capture->count > 0) {
    drop(capture, capture->count - 1);
  }
  if (capture->listener >= 0) {
    close(capture->listener);
  }
  capture->listener = -1;
  capture->path[0] = '\0';
}

void harp_capture_close(struct harp_capture *capture)
{
  if (capture->path[0]) {
    unlink(capture->path);
  }
  harp_capture_forget(capture);
}

/* Whether there is a place for a reader of this user. */
static bool has_place(const struct harp_capture *capture, uid_t user)
{
  unsigned users = 0;
  for (unsigned i = 0; i < capture->count; i++) {
    users += !capture->readers[i].root;
  }
  return capture->count < HARP_CAPTURE_READERS &&
         (user == 0 || (user == geteuid() && users < HARP_CAPTURE_USERS));
}

static void accept_readers(struct harp_capture *capture)
{
  const int size = SEND_BUFFER;
  for (unsigned i = 0; i < WAITING; i++) {
    int fd = accept4(capture->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      return;
    }
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 ||
        !has_place(capture, peer.uid)) {
      close(fd);
      continue;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    capture->readers[capture->count++] = (struct harp_capture_reader){.fd = fd,
                                                                      .root = peer.uid == 0};
  }
}

/* Reads the newest request. false: the reader has ended, or does not keep to the protocol. */
static bool read_requests(struct harp_capture_reader *reader)
{
  struct harp_capture_request request;
  ssize_t got;
  while ((got = recv(reader->fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC)) > 0) {
    if (got != sizeof request || request.version != HARP_CAPTURE_VERSION) {
      return false;
    }
    reader->request = request;
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR);
}

static void serve_readers(struct harp_capture *capture)
{
  for (unsigned i = capture->count; i-- > 0;) {
    if (!read_requests(&capture->readers[i])) {
      drop(capture, i);
    }
  }
}

void harp_capture_serve(struct harp_capture *capture)
{
  if (capture->listener < 0) {
    return;
  }
  serve_readers(capture); /* those that have ended leave their places to new ones */
  accept_readers(capture);
  serve_readers(capture);
}

/* Writes the first `keep` bytes of a frame to pieces, as many as there is room for. Returns the
 * number of pieces. */
static unsigned cut(struct iovec pieces[PIECES], const struct iovec *iov, unsigned count,
                    size_t keep)
{
  unsigned n = 0;
  for (; n < count && n < PIECES && keep > 0; n++) {
    pieces[n] = iov[n];
    if (pieces[n].iov_len > keep) {
      pieces[n].iov_len = keep;
    }
    keep -= pieces[n].iov_len;
  }
  return n;
}

void harp_capture_frame(struct harp_capture *capture, bool sent, const struct iovec *iov,
                        unsigned count, uint64_t *lost)
{
  struct iovec pieces[PIECES];
  for (unsigned i = capture->count; i-- > 0;) {
    const struct harp_capture_reader *reader = &capture->readers[i];
    if (reader->request.keep == 0 || (reader->request.sent != 0) != sent) {
      continue;
    }
    struct msghdr message = {.msg_iov = pieces,
                             .msg_iovlen = cut(pieces, iov, count, reader->request.keep)};
    if (sendmsg(reader->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      continue;
    }
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      drop(capture, i);
    } else {
      ++*lost;
    }
  }
}
