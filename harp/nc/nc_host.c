/* SPDX-License-Identifier: Apache-2.0 */
/* Start, polling, waiting and shutdown. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "harp/nc/nc.h"

#define LONGEST_SLEEP_NS 1000000000ull
#define DOWN_SLEEP_NS 50000000ull /* no event reports the return of a device that is down */

/* --- Signals --- */

static volatile sig_atomic_t signal_seen;

static void on_signal(int number) { signal_seen = number; }

static void catch_signals(void)
{
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  signal(SIGPIPE, SIG_IGN); /* write then fails with EPIPE */
}

int nc_signal(void) { return signal_seen; }

/* --- Life --- */

static void print_line(enum harp_log_level level, const char *line, void *user)
{
  const bool *everything = user;
  if (*everything || level == HARP_LOG_WARN) {
    fprintf(stderr, "harp nc: %s\n", line);
  }
}

static void discard_line(enum harp_log_level level, const char *line, void *user) {}

/* The start's log lines describe the host, so only --verbose prints them. */
static void announce(const struct nc *nc)
{
  bool verbose = nc->options->verbose;
  harp_log_drain(verbose ? print_line : discard_line, &verbose);
  if (verbose) {
    fprintf(stderr, "harp nc: %s\n", nc->engine->port->info.summary);
  }
}

int nc_open(struct nc *nc, const struct nc_options *options)
{
  char error[HARP_ENGINE_ERROR_SIZE];
  *nc = (struct nc){.options = options, .socket = -1, .source.claim.fd = -1};
  int status = nc_source_find(&nc->source, options);
  if (status >= 0) {
    return status;
  }
  catch_signals();
  if (harp_engine_open(&nc->engine, &nc->source.config, false, error) != 0 ||
      harp_engine_start(nc->engine, error) != 0) {
    return nc_fail("%s", error);
  }
  nc->instance = nc->engine->instances[0];
  harp_instance_stop(nc->instance); /* this thread polls from now on */
  announce(nc);
  return NC_WELL;
}

static void reset_connection(struct nc *nc)
{
  struct harp_stack *stack = nc->instance->stack;
  struct linger at_once = {.l_onoff = 1};
  harp_tcp_setsockopt(stack, nc->socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  harp_tcp_close(stack, nc->socket);
  nc_poll(nc);
}

void nc_close(struct nc *nc)
{
  bool verbose = nc->options->verbose;
  if (nc->engine && nc->socket >= 0) {
    reset_connection(nc);
  }
  if (nc->engine && nc->local_port) {
    harp_engine_release(nc->engine, 0, nc->local_port);
  }
  harp_engine_close(nc->engine);
  harp_log_drain(print_line, &verbose);
  nc_source_release(&nc->source);
}

/* --- Polling --- */

bool nc_poll(struct nc *nc)
{
  bool worked = false;
  harp_instance_poll(nc->instance, &worked);
  return worked;
}

static void sleep_on(struct nc *nc, struct pollfd *fds, int count, uint64_t ns)
{
  struct timespec timeout = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  sigset_t all, before;
  /* Blocks signals between the check of the flag and the sleep, so that none is missed. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (!signal_seen) {
    ppoll(fds, (nfds_t)count, &timeout, &before);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void nc_wait(struct nc *nc, const struct pollfd *others, int count, uint64_t until_ns)
{
  struct harp_instance *instance = nc->instance;
  const struct harp_port_ops *port = instance->port->ops;
  struct pollfd fds[NC_WAIT_MAX + 1];
  bool verbose = nc->options->verbose;
  uint64_t now = harp_clock_ns();
  uint64_t until = harp_instance_deadline(instance);
  uint64_t longest = now + (instance->link_down ? DOWN_SLEEP_NS : LONGEST_SLEEP_NS);
  harp_log_drain(print_line, &verbose);
  until = until < until_ns ? until : until_ns;
  until = until < longest ? until : longest;
  if (until <= now) {
    sched_yield(); /* the port is full, and no event reports room */
    return;
  }
  memcpy(fds, others, (size_t)count * sizeof *fds);
  /* The descriptor of a device that is down is always readable. */
  fds[count] = (struct pollfd){
      .fd = instance->link_down ? -1 : port->descriptor(instance->port, instance->queue),
      .events = POLLIN};
  if (!port->arm(instance->port, instance->queue, true)) {
    sleep_on(nc, fds, count + 1, until - now);
  }
  port->arm(instance->port, instance->queue, false);
}

struct harp_endpoint nc_local(const struct nc *nc)
{
  return (struct harp_endpoint){nc->engine->port->info.address, nc->local_port};
}

const char *nc_endpoint(struct harp_endpoint endpoint)
{
  static char text[INET_ADDRSTRLEN + 8];
  char address[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &endpoint.address, address, sizeof address);
  snprintf(text, sizeof text, "%s:%u", address, endpoint.port);
  return text;
}
