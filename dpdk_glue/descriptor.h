/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors of ports. Any thread. */
#ifndef HARP_DPDK_GLUE_DESCRIPTOR_H
#define HARP_DPDK_GLUE_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Closes a descriptor; -1: there is none. */
static inline void harp_descriptor_close(int fd)
{
  if (fd >= 0) {
    close(fd);
  }
}

/* Lets an epoll descriptor become readable when fd is. false: it cannot; errno says why. */
static inline bool harp_descriptor_watch(int epoll_fd, int fd)
{
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

#endif
