/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/bench/pattern.h"

#include <string.h>

void pattern_fill(void *data, size_t size, uint32_t rank, uint32_t iteration, uint64_t offset)
{
  uint8_t *place = data;
  uint64_t index = offset / sizeof(uint32_t);
  for (; size >= sizeof(uint32_t); size -= sizeof(uint32_t), place += sizeof(uint32_t)) {
    uint32_t word = pattern_word(rank, iteration, index++);
    memcpy(place, &word, sizeof(word));
  }
  uint32_t last = pattern_word(rank, iteration, index);
  memcpy(place, &last, size);
}

static uint64_t count_wrong(const uint8_t *data, uint32_t word, size_t size)
{
  uint8_t expected[sizeof(word)];
  uint64_t wrong = 0;
  memcpy(expected, &word, sizeof(word));
  for (size_t i = 0; i < size; i++) {
    wrong += data[i] != expected[i];
  }
  return wrong;
}

uint64_t pattern_check(const void *data, size_t size, uint32_t rank, uint32_t iteration,
                       uint64_t offset)
{
  const uint8_t *place = data;
  uint64_t index = offset / sizeof(uint32_t), wrong = 0;
  for (; size >= sizeof(uint32_t); size -= sizeof(uint32_t), place += sizeof(uint32_t)) {
    uint32_t expected = pattern_word(rank, iteration, index++), found;
    memcpy(&found, place, sizeof(found));
    if (found != expected) {
      wrong += count_wrong(place, expected, sizeof(expected));
    }
  }
  return wrong + count_wrong(place, pattern_word(rank, iteration, index), size);
}
