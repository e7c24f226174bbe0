/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/thread.h"

#include <signal.h>

int harp_thread_start(pthread_t *thread, void *(*function)(void *), void *argument,
                      const char *name)
{
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(thread, NULL, function, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) {
    return -error;
  }
  pthread_setname_np(*thread, name);
  return 0;
}
