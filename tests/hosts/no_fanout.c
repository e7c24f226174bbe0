/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preloaded library that shows a process 64 CPUs, and refuses to join packet sockets to a fanout
 * group, as some sandboxes do. So several instances cannot start, but one can.
 *
 * Threads: any.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

#define EXPORTED __attribute__((visibility("default")))

enum { CPUS = 64 };

EXPORTED int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
  memset(set, 0, size);
  for (int cpu = 0; cpu < CPUS; cpu++) {
    CPU_SET_S((size_t)cpu, size, set);
  }
  return 0;
}

EXPORTED int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
  int (*real)(int, int, int, const void *, socklen_t);
  *(void **)&real = dlsym(RTLD_NEXT, "setsockopt");
  if (level == SOL_PACKET && option == PACKET_FANOUT) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return real(fd, level, option, value, length);
}
