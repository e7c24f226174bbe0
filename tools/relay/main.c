/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp-relay IFACE_A IFACE_B [SPEC] [REPORT]: forwards between two interfaces until SIGTERM or
 * SIGINT. Then it writes its counts as JSON to the file REPORT or to standard output. It prints
 * "ready" when it starts to forward. Exit status: 0 success, 1 failure, 2 wrong usage.
 */
#include "tools/relay/relay.h"

#include <errno.h>
#include <inttypes.h>
#include <net/ethernet.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { PASSES_AT_STOP = 100 };

static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = number; }

static void catch_signals(void)
{
  struct sigaction action = {.sa_handler = on_signal};

  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
}

static uint64_t clock_ns(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Waits at most 50 ms, so that a signal just before the wait has effect soon. A full transmit
 * queue raises no event, so an overdue frame is retried after 100 us. */
static void wait_for_frames(struct relay_path *paths, uint64_t now_ns)
{
  uint64_t until = now_ns + 50000000;
  struct pollfd fds[2];

  for (int i = 0; i < 2; i++) {
    uint64_t deadline = relay_path_deadline(&paths[i]);

    if (deadline <= now_ns) {
      deadline = now_ns + 100000;
    }
    if (deadline < until) {
      until = deadline;
    }
    fds[i] = (struct pollfd){.fd = paths[i].in, .events = POLLIN};
  }
  struct timespec timeout = {0, (long)(until - now_ns)};
  ppoll(fds, 2, &timeout, NULL);
}

/* After the stop signal it still forwards and counts the frames that have arrived. */
static int forward(struct relay_path *paths)
{
  bool busy = true;

  for (int rest = PASSES_AT_STOP; !stop || (busy && rest > 0); rest -= stop != 0) {
    uint64_t now = clock_ns();

    busy = false;

    for (int i = 0; i < 2; i++) {
      int received = relay_socket_receive(&paths[i], now);

      if (received < 0) {
        return received;
      }
      busy |= received > 0;
      busy |= relay_path_flush(&paths[i], now);
    }
    if (!busy && !stop) {
      wait_for_frames(paths, now);
    }
  }
  return 0;
}

static void report_path(FILE *out, const struct relay_path *path)
{
  const struct relay_counts *c = &path->counts;

  fprintf(out, "\"%s\": {", path->name);
  fprintf(out, "\"frames_in\": %" PRIu64 ", \"segments\": %" PRIu64 ", ", c->frames_in,
          c->segments);
  fprintf(out, "\"passed\": %" PRIu64 ", \"dropped\": %" PRIu64 ", ", c->passed, c->dropped);
  fprintf(out, "\"duplicated\": %" PRIu64 ", \"reordered\": %" PRIu64 ", ", c->duplicated,
          c->reordered);
  fprintf(out, "\"corrupted\": %" PRIu64 ", \"retransmitted\": %" PRIu64 ", ", c->corrupted,
          c->retransmitted);
  fprintf(out, "\"needless\": %" PRIu64 ", \"overflowed\": %" PRIu64 ", ", c->needless,
          c->overflowed);
  fprintf(out, "\"unusable\": %" PRIu64 ", \"kernel_lost\": %" PRIu64 ", ", c->unusable,
          c->kernel_lost);
  fprintf(out, "\"frames_out\": %" PRIu64 ", \"bytes_out\": %" PRIu64 "}", c->frames_out,
          c->bytes_out);
}

static int report(const char *file, const struct relay_path *paths)
{
  FILE *out = file ? fopen(file, "we") : stdout;

  if (!out) {
    fprintf(stderr, "relay: %s: %s\n", file, strerror(errno));
    return 1;
  }
  fprintf(out, "{\"schema\": \"harp.relay/1\", \"seed\": %" PRIu64 ", ", paths[0].spec->seed);
  report_path(out, &paths[0]);
  fprintf(out, ", ");
  report_path(out, &paths[1]);
  fprintf(out, "}\n");
  return file ? fclose(out) != 0 : fflush(out) != 0;
}

static int open_paths(struct relay_path *paths, const struct relay_spec *spec, char **interfaces,
                      char *error)
{
  int mtu = 0;

  for (unsigned i = 0; i < 2; i++) {
    int one = 0;
    int fd = relay_socket_open(interfaces[i], &one, error);

    if (fd < 0) {
      return fd;
    }
    paths[i].in = fd;
    paths[1 - i].out = fd;
    paths[i].direction = i;
    mtu = one > mtu ? one : mtu;
  }
  paths[0].name = "a_to_b";
  paths[1].name = "b_to_a";
  for (int i = 0; i < 2; i++) {
    if (relay_path_init(&paths[i], spec, (size_t)mtu + ETHER_HDR_LEN) < 0) {
      snprintf(error, RELAY_ERROR_SIZE, "relay: no memory for %" PRIu32 " frames", spec->queue);
      return -ENOMEM;
    }
  }
  return 0;
}

int main(int argc, char **argv)
{
  struct relay_path paths[2] = {0};
  struct relay_spec spec;
  char error[RELAY_ERROR_SIZE];

  if (argc < 3 || argc > 5) {
    fprintf(stderr, "usage: harp-relay IFACE_A IFACE_B [SPEC] [REPORT]\n");
    return 2;
  }
  if (relay_spec_parse(&spec, argc > 3 ? argv[3] : "", error) < 0) {
    fprintf(stderr, "%s\n", error);
    return 2;
  }
  if (open_paths(paths, &spec, argv + 1, error) < 0) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  catch_signals();
  prctl(PR_SET_TIMERSLACK, 1ul); /* delays are in microseconds */
  printf("ready\n");
  fflush(stdout);
  int status = forward(paths);
  if (status < 0) {
    fprintf(stderr, "relay: receive: %s\n", strerror(-status));
  }
  for (int i = 0; i < 2; i++) {
    paths[i].counts.kernel_lost = relay_socket_lost(paths[i].in);
  }
  int unreported = report(argc > 4 ? argv[4] : NULL, paths);
  for (int i = 0; i < 2; i++) {
    relay_path_free(&paths[i]);
  }
  return unreported || status < 0;
}
