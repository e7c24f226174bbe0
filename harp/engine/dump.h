/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread of its own writes traces to the run folder. The folder may be on a file system that is
 * slow or hangs, and the application's threads must not wait for it. The thread uses only a copy of
 * the traces.
 *
 * Thread: any.
 */
#ifndef HARP_ENGINE_DUMP_H
#define HARP_ENGINE_DUMP_H

#include <stdint.h>

#include "harp/engine/trace.h"

/* Starts writing the traces of a NIC's count instances to a file; a log line will name the NIC and
 * the file. device, reason and now_ns: as for harp_trace_take. Nothing is written if that fails, or
 * if there is no thread. */
void harp_dump_begin(const struct harp_trace *const *traces, unsigned count, const char *device,
                     const char *reason, uint64_t now_ns);

/* Waits at most ms milliseconds until all started traces are written. A thread that has not
 * finished then continues. Not in a forked child. */
void harp_dump_wait(unsigned ms);

#endif
