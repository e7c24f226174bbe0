/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp nc: HARP's TCP as a netcat. One thread owns everything: the engine's one
 * instance has no worker, and whoever waits here polls it.
 *
 *   options.c  the command line
 *   source.c   which configuration it means, and the claim on its file
 *   host.c     bring-up, the poll that waits, the end
 *   meet.c     connecting and accepting
 *   stream.c   standard input and output, never blocking
 *   pump.c     bytes both ways until both sides are done
 *   report.c   what --verbose and --json tell
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
  /* As written; NULL: not given. */
  const char *device, *address, *gateway, *mtu;
  const char *conf, *json;
  const char *host;    /* whom to connect to */
  uint16_t port;       /* the peer's, host order */
  uint16_t local_port; /* 0: any */
  unsigned timeout_s;  /* 0: none */
};

/* -1: go on; else the exit status, and the reason has been printed. */
int nc_options_parse(struct nc_options *options, int argc, char **argv);

/* One line on stderr: what, where, how to mend it. Returns NC_FAILED. */
int nc_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Where configuration and claim come from. */
struct nc_source {
  struct harp_config config;
  struct harp_claim claim; /* fd -1: nothing is claimed */
};

/* -1 or an exit status. On success nc_source_release gives the claim back. */
int nc_source_find(struct nc_source *source, const struct nc_options *options);
void nc_source_release(struct nc_source *source);

struct nc {
  const struct nc_options *options;
  struct nc_source source;
  struct harp_engine *engine;
  struct harp_instance *instance;
  int socket; /* of the one connection; -1: none yet */
  struct harp_endpoint peer;
  uint16_t local_port; /* reserved, host order; 0: none yet */
};

/* All nanoseconds are harp_clock_ns(). */

/* NC_WELL or an exit status. nc_close is due in any case. */
int nc_open(struct nc *nc, const struct nc_options *options);
/* Resets what is still connected, says what waits in the log, gives everything back. */
void nc_close(struct nc *nc);
/* One poll of the instance; whether it found something to do. */
bool nc_poll(struct nc *nc);
/* Sleeps until a frame, a timer, one of the descriptors (at most NC_WAIT_MAX; negative ones
 * are left out), a signal, or until_ns. */
enum { NC_WAIT_MAX = 2 };
void nc_wait(struct nc *nc, const struct pollfd *others, int count, uint64_t until_ns);
/* The signal that asked for the end; 0: none. */
int nc_signal(void);
/* HARP's side of the connection. */
struct harp_endpoint nc_local(const struct nc *nc);
/* "10.0.3.7:5000" in a static buffer. */
const char *nc_endpoint(struct harp_endpoint endpoint);

/* Leaves a connected socket in nc->socket, or says why not. NC_WELL or NC_FAILED. */
int nc_connect(struct nc *nc);
int nc_accept(struct nc *nc);

#endif
