/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/capture.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  SEND_BUFFER = 4 << 20, /* bytes; the kernel allows net.core.wmem_max */
  WAITING = 16,          /* readers that have connected since the last call */
  PIECES = 64,           /* of a frame; readers miss the bytes of further ones */
};

/* Returns the address's length. */
static socklen_t name(struct sockaddr_un *address, const char *path, unsigned instance)
{
  const char *slash = strrchr(path, '/'), *stem = slash ? slash + 1 : path;
  int length = (int)strcspn(stem, ".");
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  /* The first byte stays 0: the address is abstract. */
  int written = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                         "harp-capture-%.*s-%u", length < 32 ? length : 32, stem, instance);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)written);
}

int harp_capture_open(struct harp_capture *capture, const char *path, unsigned instance)
{
  struct sockaddr_un address;
  socklen_t length = name(&address, path, instance);
  *capture = (struct harp_capture){.listener = -1};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -errno;
  }
  if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, WAITING) < 0) {
    int result = -errno;
    close(fd);
    return result;
  }
  capture->listener = fd;
  return 0;
}

static void drop(struct harp_capture *capture, unsigned index)
{
  close(capture->readers[index].fd);
  capture->readers[index] = capture->readers[--capture->count];
}

void harp_capture_close(struct harp_capture *capture)
{
  while (capture->count > 0) {
    drop(capture, capture->count - 1);
  }
  if (capture->listener >= 0) {
    close(capture->listener);
  }
  capture->listener = -1;
}

static bool may_read(int fd)
{
  struct ucred peer;
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == geteuid());
}

static void accept_readers(struct harp_capture *capture)
{
  const int size = SEND_BUFFER;
  /* The bound counts: other users may connect again and again. */
  for (unsigned i = 0; i < WAITING && capture->count < HARP_CAPTURE_READERS; i++) {
    int fd = accept4(capture->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      return;
    }
    if (!may_read(fd)) {
      close(fd);
      continue;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    capture->readers[capture->count++] = (struct harp_capture_reader){.fd = fd};
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

void harp_capture_serve(struct harp_capture *capture)
{
  if (capture->listener < 0) {
    return;
  }
  accept_readers(capture);
  for (unsigned i = capture->count; i-- > 0;) {
    if (!read_requests(&capture->readers[i])) {
      drop(capture, i);
    }
  }
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
