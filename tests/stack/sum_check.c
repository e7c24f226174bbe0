/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks every checksum routine of this CPU against RFC 1071, word by word: random bytes, lengths
 * and alignments, with and without copying. Bytes beside the copy must not change. Usage: sum_check
 * SEED TIMES; prints the names of the routines.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/stack/ip/checksum.h"
#include "harp/stack/ip/checksum_vector.h"

enum { MOST = 70000, ROOM = MOST + 256, BESIDE = 0x5a };

static uint8_t from_bytes[ROOM], to_bytes[ROOM];

/* The definition: 16-bit words in network order, with an odd byte padded by zero. */
static uint16_t defined(const uint8_t *p, size_t length)
{
  uint32_t sum = 0;
  for (size_t i = 0; i < length; i++) {
    sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return (uint16_t)sum;
}

static uint16_t folded(uint64_t sum)
{
  while (sum >> 16) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return __builtin_bswap16((uint16_t)sum); /* both supported CPUs are little-endian */
}

static void must(int good, const char *name, const char *what, size_t length)
{
  if (!good) {
    printf("%s: %s, %zu bytes\n", name, what, length);
    exit(1);
  }
}

static void check_copy(const char *name, const uint8_t *to, const uint8_t *from, size_t length)
{
  must(memcmp(to, from, length) == 0, name, "a wrong copy", length);
  for (const uint8_t *p = to_bytes; p < to_bytes + ROOM; p++) {
    must((p >= to && p < to + length) || *p == BESIDE, name, "wrote beside the copy", length);
  }
}

static void try_one(const struct harp_summer *summer)
{
  size_t length = (size_t)random() % (random() % 8 ? 400 : MOST);
  const uint8_t *from = from_bytes + random() % 128;
  uint8_t *to = to_bytes + 64 + random() % 128;
  uint16_t right = defined(from, length);
  must(folded(summer->sum(NULL, from, length)) == right, summer->name, "a wrong sum", length);
  memset(to_bytes, BESIDE, ROOM);
  must(folded(summer->sum(to, from, length)) == right, summer->name, "a wrong sum, copied", length);
  check_copy(summer->name, to, from, length);
}

/* Sums in two pieces of any length, also odd. */
static void try_pieces(void)
{
  size_t length = 2 + (size_t)random() % 3000, first = (size_t)random() % length;
  struct harp_sum sum = {0};
  harp_sum_add(&sum, from_bytes, first);
  harp_sum_copy(&sum, to_bytes, from_bytes + first, length - first);
  must(__builtin_bswap16(harp_sum_fold(&sum)) == defined(from_bytes, length), "pieces",
       "a wrong sum", length);
}

int main(int argc, char **argv)
{
  if (argc != 3) {
    return 2;
  }
  srandom((unsigned)atoi(argv[1]));
  for (int i = 0; i < atoi(argv[2]); i++) {
    if (i % 100 == 0) {
      int extreme = i % 300 == 0; /* all ones: most carries */
      for (size_t at = 0; at < ROOM; at++) {
        from_bytes[at] = extreme ? 0xff : (uint8_t)random();
      }
    }
    for (unsigned s = 0; s < harp_summer_count; s++) {
      if (harp_summers[s].there()) {
        try_one(&harp_summers[s]);
      }
    }
    try_pieces();
  }
  for (unsigned s = 0; s < harp_summer_count; s++) {
    printf("%s%s", harp_summers[s].there() ? harp_summers[s].name : "",
           harp_summers[s].there() ? " " : "");
  }
  printf("\n");
  return 0;
}
