/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/pause.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

static atomic_bool asked; /* lock-free, so a handler may set it */

static void ask(int number)
{
  atomic_store(&asked, true);
}

void pause_listen(void)
{
  struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &action, NULL);
}

void pause_if_asked(unsigned ms)
{
  struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
  if (!atomic_exchange(&asked, false))
    return;
  while (nanosleep(&left, &left))
    ;
}
