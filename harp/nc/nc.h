/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp nc: HARP's TCP as a netcat. It has one thread. The engine's single instance has no worker;
 * this thread polls it whenever it waits.
 *
 *   nc_options.c  the command line
 *   source.c      the configuration, and the claim on its file
 *   nc_host.c     start, polling, waiting and shutdown
 *   establish.c   connecting and accepting
 *   stream.c      standard input and output, without blocking
 *   nc_pump.c     moves bytes both ways until both sides have finished
 *   nc_report.c   the output of --verbose and --json
 */
#ifndef HARP_NC_NC_H
#define HARP_NC_NC_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "harp/engine/claim.h"
#include "harp/engine/engine.h"

enum nc_exit { NC_WELL = 0, NC_FAILED = 1, NC_USAGE = 2 };

struct nc_options {
  bool listen, verbose;
  /* The text of the option; NULL: not given. */
  const char *device, *address, *gateway, *mtu;
  const char *conf, *json;
  const char *host;    /* the peer's name or address */
  uint16_t port;       /* of the peer, host order */
  uint16_t local_port; /* 0: any */
  unsigned timeout_s;  /* 0: no timeout */
};

/* -1: continue; else the exit status, after printing the reason. */
int nc_options_parse(struct nc_options *options, int argc, char **argv);

/* Prints one line on stderr: what, where, how to fix it. Returns NC_FAILED. */
int nc_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The configuration, and the claim on its file. */
struct nc_source {
  struct harp_config config;
  struct harp_claim claim; /* fd -1: no claim is held */
};

/* -1: success; else the exit status. The caller must call nc_source_release after success, which
 * releases the claim. */
int nc_source_find(struct nc_source *source, const struct nc_options *options);
void nc_source_release(struct nc_source *source);

struct nc {
  const struct nc_options *options;
  struct nc_source source;
  struct harp_engine *engine;
  struct harp_instance *instance;
  int socket; /* stack socket number of the one connection; -1: none yet */
  struct harp_endpoint peer;
  uint16_t local_port; /* reserved port, host order; 0: none yet */
};

/* All times in nanoseconds are those of harp_clock_ns(). */

/* NC_WELL or an exit status. The caller must call nc_close in both cases. */
int nc_open(struct nc *nc, const struct nc_options *options);
/* Resets an open connection, prints pending log lines and releases all resources. */
void nc_close(struct nc *nc);
/* Polls the instance once. Returns true if there was work. */
bool nc_poll(struct nc *nc);
/* Sleeps until a frame, a timer, one of the descriptors (at most NC_WAIT_MAX; negative ones are
 * ignored), a signal, or until_ns. */
enum { NC_WAIT_MAX = 2 };
void nc_wait(struct nc *nc, const struct pollfd *others, int count, uint64_t until_ns);
/* Returns the signal that requested the end; 0: none. */
int nc_signal(void);
/* Returns the local endpoint of the connection. */
struct harp_endpoint nc_local(const struct nc *nc);
/* Formats "10.0.3.7:5000" in a static buffer. */
const char *nc_endpoint(struct harp_endpoint endpoint);

/* Stores a connected socket in nc->socket, or prints the error. NC_WELL or NC_FAILED. */
int nc_connect(struct nc *nc);
int nc_accept(struct nc *nc);

#endif
