/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What DPDK's archives ask for beyond an old C library: libbsd's string copies,
 * libnuma's few calls, and names that a C library of 2.27 does not have. Hidden
 * symbols, linked into whatever has the archives in it, and found there before
 * any library's.
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

/* --- libnuma: straight to the kernel, which is all that its calls do --- */

enum { NODES = 1024, NODE_WORDS = NODES / (8 * (int)sizeof(unsigned long)) };

/* libnuma's own layout: DPDK hands maskp and size on to get_mempolicy. */
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

/* A container may forbid the call as well as lack it: then memory comes as it comes. */
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

/* The system log and its name for this process are the application's. */
void openlog(const char *name, int options, int facility) {}

/* Until 2.33 it had another name; stat and its kin are in harp/glibc_floor.c. */
int mknod(const char *path, mode_t mode, dev_t device)
{
  return (int)syscall(SYS_mknodat, AT_FDCWD, path, mode, device);
}
