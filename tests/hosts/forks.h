/* SPDX-License-Identifier: Apache-2.0 */
/* A child that a rank forks. It only lives, and closes what the rank's reader waits for. */
#ifndef HARP_TESTS_FORKS_H
#define HARP_TESTS_FORKS_H

#include "harp/bench/netapi.h"

/* words: MS [CALL WAIT]. Forks a child that sleeps for MS. Another thread has begun CALL (init or
 * finalize) WAIT ms before, with *result. Beside an init, the child calls init, too, and this
 * returns its result; -1: no answer in 10 s. Otherwise this returns how many of the child's own
 * files are closed in a child of its own. */
int fork_child(struct netapi *api, ncclDebugLogger_t logger, const char *words,
               ncclResult_t *result);

#endif
