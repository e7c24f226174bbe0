/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces are written out by a thread of their own: a run folder may lie on a file
 * system that is slow or hangs, and none of the application's threads is to wait
 * for it. The thread has a copy of what it writes, and nothing else of HARP's.
 *
 * Thread: any.
 */
#ifndef HARP_ENGINE_DUMP_H
#define HARP_ENGINE_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/engine/trace.h"

/* Begins to write the rings of count instances out; a line of the log will say where
 * they are. As harp_trace_take, or a negative errno if no thread can be started. */
int harp_dump_begin(const struct harp_trace *const *traces, unsigned count, const char *reason,
                    uint64_t now_ns);

/* Waits until all that was begun is written, at most so many milliseconds. false: some
 * is not; its thread goes on by itself. Not in a forked child. */
bool harp_dump_wait(unsigned ms);

#endif
