/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library that makes sendmsg fail as the kernel does without contiguous memory, or with
 * a full queueing discipline. HARP's packet port uses sendmsg for frames that it does not hold
 * back.
 *
 * LITTLE_MEMORY names what fails: "memory": every frame whose linear part needs more than four
 * pages; "queue": two calls of nine, whatever the frame; "draining queue": a call of five, so that
 * the next one gets through; "nothing".
 *
 * LITTLE_MEMORY_LOG names a file that gets a byte for each long frame: "r" refused, "l" sent in a
 * linear buffer, "p" sent in pages.
 *
 * Threads: any.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_net.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/hosts/system_call.h"

#define EXPORTED __attribute__((visibility("default")))

enum { EASY = 16384, LONG = 49152 };

static size_t length_of(const struct msghdr *message)
{
  size_t length = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) {
    length += message->msg_iov[i].iov_len;
  }
  return length;
}

static bool is_refused(unsigned linear)
{
  static atomic_uint calls;
  const char *what = getenv("LITTLE_MEMORY");
  if (strcmp(what, "queue") == 0) {
    return atomic_fetch_add(&calls, 1) % 9 < 2;
  }
  if (strcmp(what, "draining queue") == 0) {
    return atomic_fetch_add(&calls, 1) % 5 == 0;
  }
  return strcmp(what, "memory") == 0 && linear > EASY;
}

static void note(char what)
{
  int fd = open(getenv("LITTLE_MEMORY_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0) {
    (void)!write(fd, &what, 1);
    close(fd);
  }
}

EXPORTED long syscall(long number, ...)
{
  long a[SYSTEM_CALL_ARGUMENTS];
  va_list list;
  va_start(list, number);
  read_arguments(list, a);
  va_end(list);
  if (number == SYS_sendmsg) {
    const struct msghdr *message = (const struct msghdr *)a[1];
    const struct virtio_net_hdr *vnet = message->msg_iov[0].iov_base;
    bool refused = is_refused(vnet->hdr_len);
    if (length_of(message) > LONG) {
      note(refused ? 'r' : vnet->hdr_len > EASY ? 'l' : 'p');
    }
    if (refused) {
      errno = ENOBUFS;
      return -1;
    }
  }
  return real_syscall(number, a);
}
