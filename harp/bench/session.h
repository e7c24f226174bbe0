/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's side of a run: the plugin, its comms and memory, and the progress thread. Passes run
 * on that thread while the caller, the service thread, waits.
 *
 * Errors: -1, with a sentence on stderr.
 */
#ifndef HARP_BENCH_SESSION_H
#define HARP_BENCH_SESSION_H

#include <pthread.h>

#include "harp/bench/netapi.h"
#include "harp/bench/operation.h"
#include "harp/bench/perf_options.h"
#include "harp/bench/rendezvous.h"

/* One of the rings that divide the messages, or that lead to the other ranks in turn. */
struct channel {
  int device;
  int distance; /* this rank sends to the rank that is `distance` later, modulo the ranks */
  void *listener, *send_comm, *receive_comm;
  struct region regions[OPERATION_REGIONS];
};

struct session {
  const struct options *options;
  const struct operation *operation;
  struct netapi api;
  const char *device;
  int flows; /* per link; 0: unknown */
  /* Of the kernel plugin. 0 and NULL: unknown. */
  int sockets;
  const char *congestion;
  struct rendezvous *rendezvous;
  void *everybody; /* buffer for an exchange of all ranks */
  struct channel channels[OPTIONS_MAX_CHANNELS];
  unsigned channel_count;
  unsigned outstanding;
  size_t step;
  pthread_t progress;
  bool progress_runs;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct pass *job; /* under lock: the passes that the progress thread runs, one per channel */
  bool stop;        /* under lock */
  int outcome;      /* result of the last job */
};

/* Loads and initializes the plugin. Other ranks are not needed yet. */
int session_open(struct session *session, const struct options *options);
/* Tells rank 0 that session_open has failed here. */
void session_decline(struct session *session);
/* Joins the rendezvous of all ranks. */
int session_join(struct session *session);
/* Connects the channels and registers memory. */
int session_connect(struct session *session);
/* Initializes a pass for each channel, for messages of size bytes; the caller sets the iterations.
 * session_run begins, runs and finishes them; the results of their pumps are in the first. */
void session_prepare(const struct session *session, struct pass *passes, size_t size);
int session_run(struct session *session, struct pass *passes, size_t size);
/* Exchanges size bytes per rank; the result is in session->everybody, in the order of ranks. */
int session_exchange(struct session *session, const void *mine, size_t size);
/* Call it after an error, too. */
void session_close(struct session *session);

/* Prints a line on stderr that names the rank. */
void session_say(const struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum { SESSION_LARGEST_EXCHANGE = 256 }; /* bytes per rank */

#endif
