/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared code of the fuzzers: memory that is restored after each input, and error reporting.
 *
 *   arena.c        memory whose state is saved and restored
 *   bytes.c        reads an input piece by piece; the pattern of streams
 *   frames.c       IPv4 packets of a peer; ether.c: their Ethernet frames
 *   world.c        a stack with live connections, and their owner
 *   host.c         a HARP process without threads; remote.c: its peer
 *   steps.c        inputs of equal-sized steps, and their mutation
 *   fuzz_*.c       one target each, a libFuzzer program
 *
 * A target's input is as untrusted as the data that it stands for. One thread.
 */
#ifndef HARP_TESTS_FUZZ_H
#define HARP_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names required by libFuzzer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);

/* Ends the process with a finding if the condition is false. */
#define FUZZ_EXPECT(condition)                    \
  do {                                            \
    if (!(condition))                             \
      fuzz_wrong(__FILE__, __LINE__, #condition); \
  } while (0)
_Noreturn void fuzz_wrong(const char *file, int line, const char *what);

/* --- arena.c --- */

/* Between these two calls, malloc and similar functions allocate from the arena. Untouchable
 * bytes surround each block, and freed blocks are untouchable. */
void arena_enter(void);
void arena_leave(void);
/* [start, start + size) is scratch memory: neither saved nor restored. */
void arena_skip(const void *start, size_t size);
/* Saves the arena's content, once. A restore discards later allocations. */
void arena_keep(void);
void arena_restore(void);
/* Bytes in use, and bytes never used. Freed memory is not reused. */
size_t arena_held(void);
size_t arena_left(void);

/* --- bytes.c --- */

/* The unread rest of an input. */
struct fuzz_input {
  const uint8_t *data;
  size_t left;
};

/* Read the next bytes, little-endian; zeros after the end. */
uint8_t fuzz_u8(struct fuzz_input *input);
uint16_t fuzz_u16(struct fuzz_input *input);
uint32_t fuzz_u32(struct fuzz_input *input);

/* A pattern fills the streams, so that each byte follows from its number. */
enum { PATTERN_PERIOD = 65536 };
/* Returns at least PATTERN_PERIOD bytes of a stream, from this number on. */
const uint8_t *pattern_at(uint32_t number);

/* --- steps.c --- */

enum { STEP_SIZE = 16 };

/* A target whose inputs are lists of steps defines only this. */
struct steps_target {
  unsigned most;                  /* most steps that are run */
  void (*set_up)(void);           /* creates the initial state in the arena; called once */
  void (*step)(const void *step); /* STEP_SIZE bytes */
  void (*end)(void);              /* called after the last step */
};
extern const struct steps_target steps_target;

#endif
