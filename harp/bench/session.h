/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's side of a run: the plugin, its comms and memory, and the thread
 * that makes progress. Passes run on that thread while the caller, which is
 * the service thread, waits.
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

struct session {
  const struct options *options;
  const struct operation *operation;
  struct netapi api;
  const char *device;
  int flows; /* per link; 0: the plugin has not said */
  struct rendezvous *meeting;
  void *everybody; /* room for an exchange of all ranks */
  void *listener, *send_comm, *receive_comm;
  struct region regions[OPERATION_REGIONS];
  unsigned outstanding;
  size_t step;
  pthread_t progress;
  bool progress_runs;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct pass *job; /* under lock: what the progress thread works on */
  bool stop;        /* under lock */
  int outcome;      /* of the job */
};

/* Loads the plugin and brings it up; no other rank is needed yet. */
int session_open(struct session *session, const struct options *options);
/* Meets the other ranks, connects to the neighbours, registers memory. */
int session_connect(struct session *session);
/* A pass of this session's shape; begin, run and finish it by session_run. */
void session_prepare(const struct session *session, struct pass *pass, size_t size);
int session_run(struct session *session, struct pass *pass);
/* Everybody's value of size bytes, at session->everybody in the order of ranks. */
int session_exchange(struct session *session, const void *mine, size_t size);
/* After an error, too. */
void session_close(struct session *session);

/* A line on stderr that names the rank. */
void session_say(const struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum { SESSION_LARGEST_EXCHANGE = 256 }; /* bytes of one rank */

#endif
