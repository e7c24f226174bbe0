/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that DPDK's archives need and an old C library lacks: libbsd's string copies, a few
 * libnuma calls, and names that glibc 2.27 does not have. They are hidden symbols, linked into
 * every binary with the archives. The linker finds them before those of any library.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

/* --- libbsd --- */

size_t strlcpy(char *to, const char *from, size_t room);
size_t strlcat(char *to, const char *from, size_t room);

size_t strlcpy(char *to, const char *from, size_t room)
{
  size_t length = strlen(from);
  if (room) {
    size_t part = length < room ? length : room - 1;
    memcpy(to, from, part);
    to[part] = '\0';
  }
  return length;
}

size_t strlcat(char *to, const char *from, size_t room)
{
  size_t used = strnlen(to, room);
  return used + strlcpy(to + used, from, room - used);
}

/* --- libnuma: its calls are thin wrappers of system calls --- */

enum { NODES = 1024, NODE_WORDS = NODES / (8 * (int)sizeof(unsigned long)) };

/* libnuma's layout, because DPDK passes maskp and size to get_mempolicy. */
struct bitmask {
  unsigned long size; /* bits */
  unsigned long *maskp;
};

int numa_available(void);
void numa_set_preferred(int node);
void numa_set_localalloc(void);
struct bitmask *numa_allocate_nodemask(void);
void numa_bitmask_free(struct bitmask *mask);
long get_mempolicy(int *mode, unsigned long *mask, unsigned long most, void *address,
                   unsigned flags);
long set_mempolicy(int mode, const unsigned long *mask, unsigned long most);

long get_mempolicy(int *mode, unsigned long *mask, unsigned long most, void *address,
                   unsigned flags)
{
  return syscall(SYS_get_mempolicy, mode, mask, most, address, flags);
}

long set_mempolicy(int mode, const unsigned long *mask, unsigned long most)
{
  return syscall(SYS_set_mempolicy, mode, mask, most);
}

/* The call may be missing, or a container may forbid it. DPDK then allocates without a NUMA
 * policy. */
int numa_available(void) { return get_mempolicy(NULL, NULL, 0, NULL, 0) < 0 ? -1 : 0; }

void numa_set_preferred(int node)
{
  unsigned long mask[NODE_WORDS] = {0};
  if (node < 0 || node >= NODES) {
    numa_set_localalloc();
    return;
  }
  unsigned bits = 8 * sizeof(mask[0]);
  mask[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
  set_mempolicy(MPOL_PREFERRED, mask, NODES + 1);
}

void numa_set_localalloc(void) { set_mempolicy(MPOL_DEFAULT, NULL, 0); }

struct bitmask *numa_allocate_nodemask(void)
{
  struct bitmask *mask = calloc(1, sizeof(*mask) + NODE_WORDS * sizeof(unsigned long));
  if (mask) {
    mask->size = NODES;
    mask->maskp = (unsigned long *)(mask + 1);
  }
  return mask;
}

void numa_bitmask_free(struct bitmask *mask) { free(mask); }

/* --- The C library --- */

/* Does nothing: the system log and this process's name in it belong to the application. */
void openlog(const char *name, int options, int facility) {}

/* glibc exports mknod only since 2.33; see harp/glibc_floor.c for stat and similar functions. */
int mknod(const char *path, mode_t mode, dev_t device)
{
  return (int)syscall(SYS_mknodat, AT_FDCWD, path, mode, device);
}
