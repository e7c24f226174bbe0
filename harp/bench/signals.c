/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>

/* Lock-free, so handlers may set them. */
static atomic_bool pause_requested, stop_requested;

static void request_pause(int number) { atomic_store(&pause_requested, true); }

static void request_stop(int number) { atomic_store(&stop_requested, true); }

void signals_await_pause(void)
{
  struct sigaction action = {.sa_handler = request_pause, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &action, NULL);
}

void signals_pause(unsigned ms)
{
  struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
  if (!atomic_exchange(&pause_requested, false)) {
    return;
  }
  while (nanosleep(&left, &left))
    ;
}

void signals_await_stop(bool wanted)
{
  static const int numbers[] = {SIGINT, SIGTERM};
  struct sigaction action = {.sa_handler = wanted ? request_stop : SIG_DFL,
                             .sa_flags = SA_RESTART | SA_RESETHAND};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    struct sigaction before;
    /* The parent process may have set it to SIG_IGN on purpose. */
    if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaction(numbers[i], &action, NULL);
    }
  }
}

bool signals_stop(void) { return atomic_load_explicit(&stop_requested, memory_order_relaxed); }
