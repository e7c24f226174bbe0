/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/dump.h"

#include <pthread.h>
#include <stdatomic.h>

#include "harp/engine/clock.h"
#include "harp/engine/log.h"
#include "harp/engine/thread.h"

static atomic_uint writing; /* threads that have not finished */

static void *write_out(void *argument)
{
  struct harp_trace_copy *copy = argument;
  char path[HARP_RUN_PATH_SIZE];
  if (harp_trace_write(copy, path) == 0) {
    harp_log_post(
        HARP_LOG_INFO,
        "HARP: the last events of %.100s are in %s; read them with `harp stat --trace %s`.",
        harp_trace_copy_device(copy), path, path);
  }
  harp_trace_copy_free(copy);
  atomic_fetch_sub(&writing, 1);
  return NULL;
}

void harp_dump_begin(const struct harp_trace *const *traces, unsigned count, const char *device,
                     const char *reason, uint64_t now_ns)
{
  struct harp_trace_copy *copy;
  pthread_t thread;
  if (harp_trace_take(&copy, traces, count, device, reason, now_ns) != 0) {
    return;
  }
  atomic_fetch_add(&writing, 1);
  if (harp_thread_start(&thread, write_out, copy, "harp-trace") != 0) {
    atomic_fetch_sub(&writing, 1);
    harp_trace_copy_free(copy);
    return;
  }
  pthread_detach(thread);
}

void harp_dump_wait(unsigned ms)
{
  uint64_t deadline = harp_clock_ns() + ms * UINT64_C(1000000);
  while (atomic_load(&writing) > 0 && harp_clock_ns() <= deadline) {
    harp_sleep_us(500);
  }
}
