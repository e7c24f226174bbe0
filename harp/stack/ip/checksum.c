/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/ip/checksum.h"

#include "harp/stack/ip/checksum_vector.h"

void harp_sum_copy(struct harp_sum *sum, void *to, const void *from, size_t length)
{
  uint16_t part = harp_fold(harp_sum_bytes(to, from, length));
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

uint16_t harp_checksum(const void *data, size_t length)
{
  return (uint16_t)~harp_fold(harp_sum_bytes(NULL, data, length));
}
