/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does at a signal while a pass runs.
 *
 * SIGUSR1 holds its application up between two iterations, as a model's
 * computing does: its thread posts and tests nothing, while the plugin's
 * threads go on. SIGINT and SIGTERM end the pass as a failure does, so that the
 * rank says what it has seen and closes its links; the second one ends it at once.
 */
#ifndef HARP_BENCH_SIGNALS_H
#define HARP_BENCH_SIGNALS_H

#include <stdbool.h>

/* From now on SIGUSR1 is caught. */
void signals_await_pause(void);
/* Progress thread: sleeps for so long if SIGUSR1 came since the last time. */
void signals_pause(unsigned ms);

/* Service thread, around a pass: whether SIGINT and SIGTERM only ask for its end. */
void signals_await_stop(bool wanted);
/* They did. */
bool signals_stop(void);

#endif
