/* SPDX-License-Identifier: Apache-2.0 */
/* Big-endian loads and stores at any alignment, and small arithmetic. */
#ifndef HARP_STACK_BYTES_H
#define HARP_STACK_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint16_t load_be16(const uint8_t *p)
{
  uint16_t v;
  memcpy(&v, p, sizeof v);
  return __builtin_bswap16(v);
}

static inline uint32_t load_be32(const uint8_t *p)
{
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return __builtin_bswap32(v);
}

static inline void store_be16(uint8_t *p, uint16_t v)
{
  v = __builtin_bswap16(v);
  memcpy(p, &v, sizeof v);
}

static inline void store_be32(uint8_t *p, uint32_t v)
{
  v = __builtin_bswap32(v);
  memcpy(p, &v, sizeof v);
}

/* Addresses stay in network order. */
static inline uint32_t load_address(const uint8_t *p)
{
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store_address(uint8_t *p, uint32_t address) { memcpy(p, &address, 4); }

/* Returns the size of a hash table for so many entries: a power of two. *shift: 64 minus its
 * logarithm. */
static inline uint32_t hash_buckets(uint32_t entries, uint32_t *shift)
{
  uint32_t buckets = 16;
  *shift = 64 - 4;
  while (buckets < entries) {
    buckets *= 2;
    (*shift)--;
  }
  return buckets;
}

#define HARP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HARP_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
