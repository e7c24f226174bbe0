/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that reads receive buffers before their receives complete, as a GPU does with NCCL's
 * protocols LL and LL128. Each byte must be as the buffer was filled, or as in the message. A
 * line's last eight bytes are LL128's flag: when they are there, the whole line must be there.
 */
#ifndef HARP_TESTS_WATCH_H
#define HARP_TESTS_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { WATCH_SLOTS = 64, WATCH_FILL = 0xa5, WATCH_LINE = 128, WATCH_FLAG = 8 };

struct watch_slot {
  _Atomic(unsigned long) posts; /* odd: its receive is posted */
  const unsigned char *data;
  const unsigned char *_Atomic expected;
  size_t size;
};

struct watch {
  struct watch_slot slots[WATCH_SLOTS];
  _Atomic(unsigned) count;
  atomic_ulong foreign; /* bytes that did not belong there, or came after their line's flag */
  atomic_ulong scans;
  atomic_bool stop;
  pthread_t thread;
};

/* Starts the thread. 0, or an errno. */
int watch_start(struct watch *watch);
/* Ends the thread. Returns the number of foreign bytes. */
unsigned long watch_end(struct watch *watch);
/* size: a multiple of WATCH_LINE. The caller has filled data with WATCH_FILL and posts it next. */
void watch_posted(struct watch *watch, const unsigned char *data, const unsigned char *expected,
                  size_t size);
/* The receive is complete, or was not accepted. */
void watch_released(struct watch *watch, const unsigned char *data);

#endif
