/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

_Noreturn void fuzz_wrong(const char *file, int line, const char *what)
{
  fprintf(stderr, "%s:%d: false: %s\n", file, line, what);
  abort();
}

uint8_t fuzz_u8(struct fuzz_input *input)
{
  if (input->left == 0) {
    return 0;
  }
  input->left--;
  return *input->data++;
}

uint16_t fuzz_u16(struct fuzz_input *input)
{
  uint16_t low = fuzz_u8(input);
  return (uint16_t)(low | fuzz_u8(input) << 8);
}

uint32_t fuzz_u32(struct fuzz_input *input)
{
  uint32_t low = fuzz_u16(input);
  return low | (uint32_t)fuzz_u16(input) << 16;
}

const uint8_t *pattern_at(uint32_t number)
{
  static uint8_t pattern[2 * PATTERN_PERIOD];
  if (pattern[1] == 0) {
    for (uint32_t i = 0; i < sizeof pattern; i++) {
      uint32_t mixed = (i % PATTERN_PERIOD) * 2654435761u;
      pattern[i] = (uint8_t)(mixed >> 24);
    }
  }
  return pattern + number % PATTERN_PERIOD;
}
