/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_ENGINE_THREAD_H
#define HARP_ENGINE_THREAD_H

#include <pthread.h>

/* Starts a thread with all signals blocked, since signals belong to the application's threads.
 * name: at most 15 bytes. 0, or a negative errno. */
int harp_thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                      const char *name);

#endif
