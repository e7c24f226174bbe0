/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signal handling of a rank during a pass.
 *
 * SIGUSR1 pauses the application between two iterations, like a model's computation. Its thread
 * posts and tests nothing, while the plugin's threads continue. SIGINT and SIGTERM end the pass as
 * a failure does, so that the rank prints its results and closes its links. A second one ends the
 * process at once.
 */
#ifndef HARP_BENCH_SIGNALS_H
#define HARP_BENCH_SIGNALS_H

#include <stdbool.h>

/* Installs the handler for SIGUSR1. */
void signals_await_pause(void);
/* Progress thread: sleeps for ms milliseconds if SIGUSR1 arrived since the last call. */
void signals_pause(unsigned ms);

/* Service thread, around a pass. wanted: SIGINT and SIGTERM only request the end of the pass. */
void signals_await_stop(bool wanted);
/* Returns true if one of them arrived. */
bool signals_stop(void);

#endif
