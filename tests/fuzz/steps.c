/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* A linear congruential generator, determined by the seed. */
static unsigned draw(unsigned *state, size_t below)
{
  *state = *state * 1664525u + 1013904223u;
  return (unsigned)((*state >> 8) % (below ? below : 1));
}

static size_t insert_copy(uint8_t *data, size_t steps, size_t room, unsigned *seed)
{
  if (steps == 0 || (steps + 1) * STEP_SIZE > room) {
    return steps;
  }
  size_t from = draw(seed, steps), to = draw(seed, steps + 1);
  uint8_t step[STEP_SIZE];
  memcpy(step, data + from * STEP_SIZE, STEP_SIZE);
  memmove(data + (to + 1) * STEP_SIZE, data + to * STEP_SIZE, (steps - to) * STEP_SIZE);
  memcpy(data + to * STEP_SIZE, step, STEP_SIZE);
  return steps + 1;
}

static size_t remove_step(uint8_t *data, size_t steps, unsigned *seed)
{
  if (steps < 2) {
    return steps;
  }
  size_t at = draw(seed, steps);
  memmove(data + at * STEP_SIZE, data + (at + 1) * STEP_SIZE, (steps - at - 1) * STEP_SIZE);
  return steps - 1;
}

static void swap_steps(uint8_t *data, size_t steps, unsigned *seed)
{
  uint8_t step[STEP_SIZE];
  uint8_t *a = data + draw(seed, steps) * STEP_SIZE, *b = data + draw(seed, steps) * STEP_SIZE;
  memcpy(step, a, STEP_SIZE);
  memmove(a, b, STEP_SIZE);
  memcpy(b, step, STEP_SIZE);
}

/* A mutation that mostly preserves the borders of steps. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed)
{
  size_t steps = size / STEP_SIZE;
  if (steps == 0) {
    return LLVMFuzzerMutate(data, size, room);
  }
  switch (draw(&seed, 8)) {
  case 0: return insert_copy(data, steps, room, &seed) * STEP_SIZE;
  case 1: return remove_step(data, steps, &seed) * STEP_SIZE;
  case 2: swap_steps(data, steps, &seed); return steps * STEP_SIZE;
  case 3: /* anywhere: steps of other inputs, compared words */
    return LLVMFuzzerMutate(data, size, room);
  default: /* within one step, whose size stays */
    LLVMFuzzerMutate(data + draw(&seed, steps) * STEP_SIZE, STEP_SIZE, STEP_SIZE);
    return steps * STEP_SIZE;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static bool ready;
  if (!ready) {
    arena_enter();
    steps_target.set_up();
    arena_keep();
    ready = true;
  }
  arena_restore();
  arena_enter();
  for (size_t i = 0; i < steps_target.most && (i + 1) * STEP_SIZE <= size; i++) {
    steps_target.step(data + i * STEP_SIZE);
  }
  steps_target.end();
  arena_leave();
  return 0;
}
