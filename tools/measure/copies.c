/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast this machine copies, by the distance of destination and source modulo the page size. On
 * some processors `rep movsb` is many times slower at certain distances. The kernel uses it to copy
 * from and to user memory, and the C library uses it for large memcpy.
 *
 * A pipe shows the kernel's copies. Each page of a pipe begins with the page, and so the user's
 * buffer sets the distance. Only the copying system call is timed.
 *
 * Usage: harp-copies MILLISECONDS DISTANCE... It prints "WAY DISTANCE GB/s" (10^9 bytes) for each
 * way to copy and each distance: the fastest of three measurements of that duration each.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BLOCK = 16 * PAGE, REPEATS = 3 };

struct buffers {
  uint8_t *from, *to; /* BLOCK and a page each; both begin with a page */
  int reader, writer; /* of a pipe that is empty and has room for BLOCK */
  int nowhere;
};

/* Copies a block at this distance. Returns the nanoseconds of the copy alone. */
typedef uint64_t copy_fn(struct buffers *buffers, size_t distance);

static void must(bool good, const char *what)
{
  if (!good) {
    fprintf(stderr, "harp-copies: %s: %s\n", what, strerror(errno));
    exit(1);
  }
}

static uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)
static uint64_t copy_movsb(struct buffers *buffers, size_t distance)
{
  void *to = buffers->to + distance;
  const void *from = buffers->from;
  size_t count = BLOCK;
  uint64_t began = now_ns();
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
  return now_ns() - began;
}
#endif

static uint64_t copy_libc(struct buffers *buffers, size_t distance)
{
  uint64_t began = now_ns();
  memcpy(buffers->to + distance, buffers->from, BLOCK);
  __asm__ volatile("" : : "r"(buffers->to) : "memory"); /* the copy may not be optimized away */
  return now_ns() - began;
}

static uint64_t copy_in(struct buffers *buffers, size_t distance)
{
  const uint8_t *from = buffers->from + (PAGE - distance) % PAGE;
  uint64_t began = now_ns();
  must(write(buffers->writer, from, BLOCK) == BLOCK, "write to a pipe");
  uint64_t took = now_ns() - began;
  for (ssize_t left = BLOCK; left > 0;) {
    ssize_t moved = splice(buffers->reader, NULL, buffers->nowhere, NULL, (size_t)left, 0);
    must(moved > 0, "splice to /dev/null");
    left -= moved;
  }
  return took;
}

static uint64_t copy_out(struct buffers *buffers, size_t distance)
{
  must(write(buffers->writer, buffers->from, BLOCK) == BLOCK, "write to a pipe");
  uint64_t began = now_ns();
  must(read(buffers->reader, buffers->to + distance, BLOCK) == BLOCK, "read from a pipe");
  return now_ns() - began;
}

static const struct way {
  const char *name;
  copy_fn *copy;
} ways[] = {
#if defined(__x86_64__)
    {"movsb", copy_movsb},
#endif
    {"memcpy", copy_libc},
    {"kernel-in", copy_in},
    {"kernel-out", copy_out},
};

/* Returns GB/s over this time. */
static double measure(const struct way *way, struct buffers *buffers, size_t distance,
                      uint64_t duration_ns)
{
  uint64_t taken = 0, blocks = 0, end = now_ns() + duration_ns;
  way->copy(buffers, distance);
  do {
    taken += way->copy(buffers, distance);
    blocks++;
  } while (now_ns() < end);
  return (double)(blocks * BLOCK) / (double)(taken ? taken : 1);
}

static uint8_t *pages(void)
{
  uint8_t *data = mmap(NULL, BLOCK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
  must(data != MAP_FAILED, "mmap");
  memset(data, 1, BLOCK + PAGE);
  return data;
}

static void open_buffers(struct buffers *buffers)
{
  int ends[2];
  must(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  must(fcntl(ends[1], F_SETPIPE_SZ, 2 * BLOCK) >= BLOCK, "F_SETPIPE_SZ");
  *buffers = (struct buffers){
      .from = pages(),
      .to = pages(),
      .reader = ends[0],
      .writer = ends[1],
      .nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC),
  };
  must(buffers->nowhere >= 0, "/dev/null");
}

int main(int argc, char **argv)
{
  struct buffers buffers;
  if (argc < 3) {
    fputs("Usage: harp-copies MILLISECONDS DISTANCE...\n", stderr);
    return 2;
  }
  open_buffers(&buffers);
  uint64_t duration_ns = strtoull(argv[1], NULL, 10) * 1000000;
  for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
    for (int i = 2; i < argc; i++) {
      size_t distance = strtoul(argv[i], NULL, 10) % PAGE;
      double best = 0;
      for (int repeat = 0; repeat < REPEATS; repeat++) {
        double rate = measure(&ways[way], &buffers, distance, duration_ns);
        best = rate > best ? rate : best;
      }
      printf("%s %zu %.3f\n", ways[way].name, distance, best);
    }
  }
  return 0;
}
