/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes numbers in network byte order, at any alignment. */
#ifndef HARP_DPDK_GLUE_BIG_ENDIAN_H
#define HARP_DPDK_GLUE_BIG_ENDIAN_H

#include <stdint.h>

static inline uint16_t harp_read16(const uint8_t *at) { return (uint16_t)(at[0] << 8 | at[1]); }

static inline uint32_t harp_read32(const uint8_t *at)
{
  return (uint32_t)harp_read16(at) << 16 | harp_read16(at + 2);
}

/* Writes the low 16 bits of value. */
static inline void harp_write16(uint8_t *at, uint32_t value)
{
  at[0] = (uint8_t)(value >> 8);
  at[1] = (uint8_t)value;
}

static inline void harp_write32(uint8_t *at, uint32_t value)
{
  harp_write16(at, value >> 16);
  harp_write16(at + 2, value);
}

#endif
