/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the user. A worker must not call NCCL's logger, which may block and is invalid after
 * the plugin was unloaded. So lines wait in a bounded queue until one of NCCL's threads takes them
 * and logs them.
 *
 * Lines that differ only in digits count as one message. HARP_LOG_BURST of them may pass within
 * HARP_LOG_PERIOD_S. Further ones are dropped, and the next one that passes tells their number.
 *
 * HARP_DEBUG=1 also writes each line to stderr at once.
 *
 * The process has one queue. Thread: any; a post holds a mutex while it copies one line.
 */
#ifndef HARP_ENGINE_LOG_H
#define HARP_ENGINE_LOG_H

#include <stdint.h>

enum {
  HARP_LOG_LINE_SIZE = 640,
  HARP_LOG_QUEUE = 128, /* capacity in lines */
  HARP_LOG_BURST = 16,
  HARP_LOG_PERIOD_S = 5,
};

enum harp_log_level {
  HARP_LOG_WARN,
  HARP_LOG_INFO,
};

typedef void (*harp_log_writer)(enum harp_log_level level, const char *line, void *user);

/* Queues one line, without a newline; a longer line is truncated. Never waits for the reader: if
 * the queue is full, the line is dropped and counted. */
__attribute__((format(printf, 2, 3))) void harp_log_post(enum harp_log_level level,
                                                         const char *format, ...);

/* Passes the queued lines to write, oldest first, at most HARP_LOG_QUEUE lines. An empty queue
 * costs one load. Thread: one of the application's. */
void harp_log_drain(harp_log_writer write, void *user);

/* Lines dropped since the process started because the queue was full. */
uint64_t harp_log_dropped(void);

/* In a forked child: resets the queue and its mutex, which a thread of the parent may have held. */
void harp_log_forget(void);

#endif
