/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzzers share: memory that goes back to what it was after each input,
 * and how a wrong result is told.
 *
 *   arena.c        memory with a state that is kept and restored
 *   bytes.c        an input, read piece by piece; the pattern of streams
 *   frames.c       IPv4 packets of a peer; ether.c: and what carries them
 *   world.c        a stack with live connections, and their owner
 *   host.c         a HARP process without threads; remote.c: who it talks to
 *   steps.c        inputs made of steps of equal size, and how they mutate
 *   fuzz_*.c       one target each; a target is a program of libFuzzer's
 *
 * A target's input is untrusted in the same way as what it stands for. One
 * thread.
 */
#ifndef HARP_TESTS_FUZZ_H
#define HARP_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's names. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);

/* Ends the process as a finding, unless the condition holds. */
#define FUZZ_EXPECT(condition)                    \
  do {                                            \
    if (!(condition))                             \
      fuzz_wrong(__FILE__, __LINE__, #condition); \
  } while (0)
_Noreturn void fuzz_wrong(const char *file, int line, const char *what);

/* --- arena.c --- */

/* Between these two, malloc and its like take from the arena; what they return
 * is surrounded by bytes that may not be touched, and so is what was freed. */
void arena_enter(void);
void arena_leave(void);
/* [start, start + size) is scratch, whose content means nothing: neither kept nor restored. */
void arena_skip(const void *start, size_t size);
/* Keeps what is in the arena, once; what is allocated later goes with the next restore. */
void arena_keep(void);
void arena_restore(void);
/* Bytes of it that are in use; that have never been: what is freed is not taken again. */
size_t arena_held(void);
size_t arena_left(void);

/* --- bytes.c --- */

/* What is left of an input. */
struct fuzz_input {
  const uint8_t *data;
  size_t left;
};

/* The next bytes, little-endian; zeros where the input has ended. */
uint8_t fuzz_u8(struct fuzz_input *input);
uint16_t fuzz_u16(struct fuzz_input *input);
uint32_t fuzz_u32(struct fuzz_input *input);

/* Streams consist of a pattern, so that each byte can be told from its number. */
enum { PATTERN_PERIOD = 65536 };
/* At least PATTERN_PERIOD bytes that a stream has from this number on. */
const uint8_t *pattern_at(uint32_t number);

/* --- steps.c --- */

enum { STEP_SIZE = 16 };

/* A target whose inputs are lists of steps: this is all that it defines. */
struct steps_target {
  unsigned most;                  /* steps that are looked at */
  void (*set_up)(void);           /* what each input finds, in the arena; once */
  void (*step)(const void *step); /* STEP_SIZE bytes */
  void (*end)(void);              /* after the last one */
};
extern const struct steps_target steps_target;

#endif
