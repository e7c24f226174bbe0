/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks CRC32C with the CPU's instruction and without it: against the check value of the catalogue
 * ("123456789"), and against each other on random bytes, lengths, alignments and pieces. Usage:
 * crc_check SEED TIMES
 */
#include <stdio.h>
#include <stdlib.h>

#include "plugin/link/crc32c.h"

enum { MOST = 5000 };

static int differs(const uint8_t *data, size_t length, size_t cut)
{
  uint32_t whole = crc32c(0, data, length);
  uint32_t portable = crc32c_portable(0, data, length);
  uint32_t pieces = crc32c(crc32c_portable(0, data, cut), data + cut, length - cut);
  return whole != portable || whole != pieces;
}

int main(int argc, char **argv)
{
  static uint8_t bytes[MOST + 8];
  if (argc != 3) {
    return 2;
  }
  srandom((unsigned)atoi(argv[1]));
  if (crc32c(0, "123456789", 9) != 0xe3069283 || crc32c_portable(0, "123456789", 9) != 0xe3069283) {
    puts("the check value is wrong");
    return 1;
  }
  for (int left = atoi(argv[2]); left > 0; left--) {
    size_t length = (size_t)random() % (MOST + 1), begin = (size_t)random() % 8;
    size_t cut = length ? (size_t)random() % length : 0;
    for (size_t i = 0; i < length; i++) {
      bytes[begin + i] = (uint8_t)random();
    }
    if (differs(bytes + begin, length, cut)) {
      printf("%zu bytes from %zu on, cut at %zu\n", length, begin, cut);
      return 1;
    }
  }
  return 0;
}
