/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGUSR1 holds a rank's application up between two iterations, as a model's
 * computing does: its thread posts and tests nothing, while the plugin's
 * threads go on.
 */
#ifndef HARP_BENCH_PAUSE_H
#define HARP_BENCH_PAUSE_H

/* From now on the signal is caught. */
void pause_listen(void);
/* Progress thread: sleeps for so long if the signal came since the last time. */
void pause_if_asked(unsigned ms);

#endif
