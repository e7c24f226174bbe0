/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that move frames, without the C library's wrappers. The wrappers are points of
 * thread cancellation. In a process with several threads, each of them executes two locked
 * instructions to tell that (glibc, sysdeps/unix/sysv/linux/sendmsg.c).
 *
 * The arguments and results are those of sendmsg(2), sendmmsg(2) and recvmmsg(2). Any thread.
 */
#ifndef HARP_DPDK_GLUE_KERNEL_PACKET_CALLS_H
#define HARP_DPDK_GLUE_KERNEL_PACKET_CALLS_H

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns the bytes sent, or -1 with errno. */
static inline ssize_t harp_sendmsg(int fd, const struct msghdr *message, int flags)
{
  return syscall(SYS_sendmsg, fd, message, flags);
}

/* Returns the number of messages sent, or -1 with errno. */
static inline int harp_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
  return (int)syscall(SYS_sendmmsg, fd, messages, count, flags);
}

/* Returns the number of messages received, or -1 with errno. It has no timeout: flags contain
 * MSG_DONTWAIT. */
static inline int harp_recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
  return (int)syscall(SYS_recvmmsg, fd, messages, count, flags, NULL);
}

#endif
