/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the user. A worker must not call NCCL's logger (it may block, and
 * is gone after unload), so lines wait in a bounded queue until a thread of
 * NCCL's takes them and speaks them there.
 *
 * Lines that differ only in their numbers count as one message: after
 * HARP_LOG_BURST of them within HARP_LOG_PERIOD_S the others are held back, and
 * the next one that passes says how many there were.
 *
 * HARP_DEBUG=1 writes each line to stderr at once as well.
 *
 * The queue is the process's. Thread: any; a post takes a mutex for the time of
 * copying one line.
 */
#ifndef HARP_ENGINE_LOG_H
#define HARP_ENGINE_LOG_H

#include <stdint.h>

enum {
  HARP_LOG_LINE_SIZE = 640,
  HARP_LOG_QUEUE = 128, /* lines that can wait */
  HARP_LOG_BURST = 16,
  HARP_LOG_PERIOD_S = 5,
};

enum harp_log_level {
  HARP_LOG_WARN,
  HARP_LOG_INFO,
};

typedef void (*harp_log_writer)(enum harp_log_level level, const char *line, void *user);

/* One line, without a newline; longer ones are cut off. Never blocks on the
 * reader: when the queue is full the line is dropped and counted. */
__attribute__((format(printf, 2, 3))) void harp_log_post(enum harp_log_level level,
                                                         const char *format, ...);

/* Speaks what waits, oldest first, at most HARP_LOG_QUEUE lines; costs one load
 * when nothing does. Thread: one of the application's. */
void harp_log_drain(harp_log_writer speak, void *user);

/* Lines dropped since the process began because the queue was full. */
uint64_t harp_log_dropped(void);

/* In a forked child: an empty queue, whatever the parent's threads were doing. */
void harp_log_forget(void);

#endif
