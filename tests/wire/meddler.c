/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sits between two wires and passes on what comes, unchanged and in order; told
 * to, it throws garbage at one of the two as well, made of noise and of the
 * real frames that it has seen go there.
 *
 * Usage: meddler VICTIM OTHER: the paths of two wires, whose other ends belong
 * to the two hosts. Lines of standard input, each answered by one:
 *
 *   flood COUNT SEED VOUCHED   ok FRAMES-LEARNED, when all of it has been taken
 *
 * VOUCHED 1: about half of it comes as if a device had found its checksum good;
 * 0: none of it does.
 *
 * It ends with its standard input.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_glue/port.h"
#include "tests/wire/spoil.h"

enum { VICTIM, OTHER, ENDS, BURST = 32, NAP_MS = 100, STUCK_S = 20 };

static struct harp_port *ports[ENDS];
static struct spoil spoil;
static bool flooding; /* what comes meanwhile may be an answer to garbage: nothing to learn from */

static void fatal(const char *what, const char *why)
{
  fprintf(stderr, "meddler: %s: %s\n", what, why);
  exit(2);
}

static void open_end(int end, const char *path)
{
  char device[200], error[HARP_PORT_ERROR_SIZE];
  struct harp_port_config config = {.queues = 1, .address = 0x0900000a, .prefix = 8};
  snprintf(device, sizeof device, "wire:%s", path);
  if (harp_port_open(&ports[end], device, &config, error) < 0)
    fatal(device, error);
}

/* false: the wire is full. */
static bool put(int end, const uint8_t *bytes, uint32_t length, uint16_t segment_size,
                bool vouched)
{
  struct iovec iov = {(void *)(uintptr_t)bytes, length};
  struct harp_tx_frame frame = {
      .iov = &iov,
      .iov_count = 1,
      .length = length,
      .header_length = (uint16_t)(length < UINT16_MAX ? length : UINT16_MAX),
      .segment_size = segment_size,
      .checksum_needed = vouched,
  };
  int rc = ports[end]->ops->transmit(ports[end], 0, &frame);
  if (rc < 0 && rc != -EAGAIN)
    fatal("a frame cannot be sent", strerror(-rc));
  return rc == 0;
}

/* Passes on one burst; a full wire loses frames, as wires do. */
static int pass_on(int from)
{
  struct harp_rx_frame frames[BURST];
  int count = ports[from]->ops->receive(ports[from], 0, NULL, frames, BURST);
  for (int i = 0; i < count; i++) {
    const struct harp_rx_frame *frame = &frames[i];
    put(!from, frame->header, frame->header_length, frame->segment_size, frame->checksum_good);
    if (from == OTHER && !flooding)
      spoil_learn(&spoil, frame->header, frame->header_length, frame->segment_size,
                  frame->checksum_good);
  }
  if (count > 0)
    ports[!from]->ops->flush(ports[!from], 0);
  return count;
}

static int pass_all_on(void) { return pass_on(VICTIM) + pass_on(OTHER); }

static time_t seconds(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

static void flood(unsigned long count, uint64_t seed, bool vouched)
{
  static struct spoil_frame frame;
  time_t progress = seconds();
  spoil.state = seed;
  flooding = true;
  for (unsigned long sent = 0; sent < count;) {
    spoil_next(&spoil, &frame);
    frame.vouched &= vouched;
    while (!put(VICTIM, frame.bytes, frame.length, frame.segment_size, frame.vouched)) {
      ports[VICTIM]->ops->flush(ports[VICTIM], 0);
      pass_all_on();
      sched_yield();
      if (seconds() - progress > STUCK_S)
        fatal("flood", "the victim takes no more frames");
    }
    sent++;
    if (sent % BURST == 0) {
      ports[VICTIM]->ops->flush(ports[VICTIM], 0);
      pass_all_on();
      progress = seconds();
    }
  }
  ports[VICTIM]->ops->flush(ports[VICTIM], 0);
  flooding = false;
  printf("ok %u\n", spoil.seen);
  fflush(stdout);
}

/* One line of standard input, or its end. */
static bool obey(void)
{
  char line[100];
  unsigned long count;
  unsigned long long seed;
  int vouched;
  ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
  if (got <= 0)
    return false;
  line[got] = '\0';
  if (sscanf(line, "flood %lu %llu %d", &count, &seed, &vouched) != 3)
    fatal("no such command", line);
  flood(count, seed, vouched);
  return true;
}

/* Waits for a frame or a command, or a moment; whether there is a command. */
static bool wait_for_something(void)
{
  struct pollfd fds[ENDS + 1] = {{.fd = STDIN_FILENO, .events = POLLIN}};
  bool busy = false;
  for (int end = 0; end < ENDS; end++) {
    fds[1 + end] = (struct pollfd){.fd = ports[end]->ops->descriptor(ports[end], 0),
                                   .events = POLLIN};
    busy |= ports[end]->ops->arm(ports[end], 0, true) > 0;
  }
  poll(fds, ENDS + 1, busy ? 0 : NAP_MS);
  for (int end = 0; end < ENDS; end++)
    ports[end]->ops->arm(ports[end], 0, false);
  return fds[0].revents != 0;
}

int main(int argc, char **argv)
{
  if (argc != 3)
    fatal("usage", "meddler VICTIM OTHER");
  spoil_seed(&spoil, 1);
  open_end(VICTIM, argv[1]);
  open_end(OTHER, argv[2]);
  printf("ok\n");
  fflush(stdout);
  for (bool alive = true; alive;) {
    int passed = pass_all_on();
    if (wait_for_something())
      alive = obey();
    else if (passed > 0)
      sched_yield();
  }
  for (int end = 0; end < ENDS; end++)
    harp_port_close(ports[end]);
  return 0;
}
