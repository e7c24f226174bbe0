/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forwards frames between two wires, unchanged and in order. On command it also floods one of the
 * two hosts with garbage, made of random bytes and of recorded frames to that host.
 *
 * Usage: garbage_injector VICTIM OTHER: the paths of two wires, whose other ends belong to the two
 * hosts. Each line of standard input is answered by one line:
 *
 *   flood COUNT SEED CHECKSUM_GOOD   ok FRAMES-LEARNED, after all frames were sent
 *
 * CHECKSUM_GOOD 1: about half of the frames carry the note that a device has verified their
 * checksum. 0: none does, and no TCP checksum is right.
 *
 * The program ends at the end of standard input.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/frame_fields.h"
#include "tests/garbage/corrupt.h"
#include "tools/attacker/forwarder.h"

enum { BURST = 32, NAP_MS = 100, STUCK_S = 20 };

static struct forwarder forwarder;
static struct corrupt corrupt;
static bool flooding; /* received frames may be answers to garbage, so nothing is learned */

static void fatal(const char *what, const char *why)
{
  fprintf(stderr, "garbage_injector: %s: %s\n", what, why);
  exit(2);
}

static bool seen(void *user, enum forwarder_end from, const struct harp_rx_frame *frame)
{
  if (from == FORWARDER_OTHER && !flooding) {
    corrupt_learn(&corrupt, frame->header, frame->header_length, frame->segment_size,
                  frame->checksum_good);
  }
  return true;
}

/* Returns false if the wire is full. */
static bool put(const struct corrupt_frame *frame)
{
  int rc = forwarder_put(&forwarder, FORWARDER_VICTIM, frame->bytes, frame->length,
                         frame->segment_size, frame->checksum_good);
  if (rc < 0 && rc != -EAGAIN) {
    fatal("cannot send a frame", strerror(-rc));
  }
  return rc == 0;
}

static time_t seconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* One of 65536 checksums is right by chance. The frame could then end a connection. */
static void spoil_checksum(struct corrupt_frame *frame)
{
  struct harp_tcp_fields fields;
  uint8_t given[2];
  if (!harp_frame_tcp_fields(frame->bytes, frame->length, &fields)) {
    return;
  }
  uint8_t *field = frame->bytes + fields.start + TCP_CHECKSUM;
  memcpy(given, field, sizeof given);
  harp_complete_checksum(frame->bytes, frame->length);
  given[0] ^= memcmp(given, field, sizeof given) == 0;
  memcpy(field, given, sizeof given);
}

static void flood(unsigned long count, uint64_t seed, bool checksum_good)
{
  static struct corrupt_frame frame;
  time_t progress = seconds();
  corrupt.state = seed;
  flooding = true;
  for (unsigned long sent = 0; sent < count;) {
    corrupt_next(&corrupt, &frame);
    frame.checksum_good &= checksum_good;
    if (!checksum_good) {
      spoil_checksum(&frame);
    }
    while (!put(&frame)) {
      forwarder_flush(&forwarder, FORWARDER_VICTIM);
      forwarder_pass(&forwarder);
      sched_yield();
      if (seconds() - progress > STUCK_S) {
        fatal("flood", "the victim accepts no more frames");
      }
    }
    sent++;
    if (sent % BURST == 0) {
      forwarder_flush(&forwarder, FORWARDER_VICTIM);
      forwarder_pass(&forwarder);
      progress = seconds();
    }
  }
  forwarder_flush(&forwarder, FORWARDER_VICTIM);
  flooding = false;
  printf("ok %u\n", corrupt.seen);
  fflush(stdout);
}

/* Runs one line of standard input. Returns false at its end. */
static bool obey(void)
{
  char line[100];
  unsigned long count;
  unsigned long long seed;
  int checksum_good;
  ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
  if (got <= 0) {
    return false;
  }
  line[got] = '\0';
  if (sscanf(line, "flood %lu %llu %d", &count, &seed, &checksum_good) != 3) {
    fatal("no such command", line);
  }
  flood(count, seed, checksum_good);
  return true;
}

int main(int argc, char **argv)
{
  if (argc != 3) {
    fatal("usage", "garbage_injector VICTIM OTHER");
  }
  char error[HARP_PORT_ERROR_SIZE];
  corrupt_seed(&corrupt, 1);
  forwarder.seen = seen;
  if (forwarder_open(&forwarder, argv[1], argv[2], error) < 0) {
    fatal(argv[1], error);
  }
  printf("ok\n");
  fflush(stdout);
  for (bool alive = true; alive;) {
    int passed = forwarder_pass(&forwarder);
    if (forwarder_wait(&forwarder, STDIN_FILENO, NAP_MS)) {
      alive = obey();
    } else if (passed > 0) {
      sched_yield();
    }
  }
  forwarder_close(&forwarder);
  return 0;
}
