/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FNV-1a (Fowler, Noll and Vo): a hash without a key. Another host can choose bytes with equal
 * hashes, so it protects from accidents only. harp/stack/siphash.h has a keyed hash.
 */
#ifndef HARP_FNV1A_H
#define HARP_FNV1A_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_32_BEGIN 2166136261u
#define FNV1A_64_BEGIN 14695981039346656037u

/* Continues a hash by these bytes. A hash begins with FNV1A_32_BEGIN. */
static inline uint32_t fnv1a_32(uint32_t hash, const void *data, size_t bytes)
{
  const uint8_t *at = data;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ at[i]) * 16777619u;
  }
  return hash;
}

/* As fnv1a_32. A hash begins with FNV1A_64_BEGIN. */
static inline uint64_t fnv1a_64(uint64_t hash, const void *data, size_t bytes)
{
  const uint8_t *at = data;
  for (size_t i = 0; i < bytes; i++) {
    hash = (hash ^ at[i]) * 1099511628211u;
  }
  return hash;
}

#endif
