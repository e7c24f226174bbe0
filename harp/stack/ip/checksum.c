/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/ip/checksum.h"

#include "harp/stack/ip/checksum_vector.h"

static uint16_t fold(uint64_t sum)
{
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

void harp_sum_copy(struct harp_sum *sum, void *to, const void *from, size_t length)
{
  uint16_t part = fold(harp_sum_bytes(to, from, length));
  if (sum->odd) {
    part = __builtin_bswap16(part);
  }
  sum->value += part;
  sum->odd ^= length & 1;
}

void harp_sum_add(struct harp_sum *sum, const void *data, size_t length)
{
  harp_sum_copy(sum, NULL, data, length);
}

void harp_sum_add_pseudo(struct harp_sum *sum, uint32_t source, uint32_t destination,
                         uint8_t protocol, uint32_t length)
{
  /* Words in memory order: protocol and length in network order. */
  sum->value += (uint64_t)source + destination + __builtin_bswap16(protocol) +
                __builtin_bswap32(length);
}

uint16_t harp_sum_fold(const struct harp_sum *sum) { return fold(sum->value); }

uint16_t harp_checksum(const void *data, size_t length)
{
  return (uint16_t)~fold(harp_sum_bytes(NULL, data, length));
}
