/* SPDX-License-Identifier: Apache-2.0 */
/* The Internet checksum (RFC 1071). */
#ifndef HARP_STACK_CHECKSUM_H
#define HARP_STACK_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A running one's-complement sum over several pieces of data. odd: the sum covers an odd number of
 * bytes so far. Start with {0}.
 */
struct harp_sum {
  uint64_t value;
  bool odd;
};

void harp_sum_add(struct harp_sum *sum, const void *data, size_t length);
/* Adds the bytes at from and also copies them to `to`. The two must not overlap. */
void harp_sum_copy(struct harp_sum *sum, void *to, const void *from, size_t length);

/* Adds the pseudo-header. Addresses in network order; length: TCP header and payload, bytes. */
static inline void harp_sum_add_pseudo(struct harp_sum *sum, uint32_t source, uint32_t destination,
                                       uint8_t protocol, uint32_t length)
{
  /* Words in memory order: protocol and length in network order. */
  sum->value += (uint64_t)source + destination + __builtin_bswap16(protocol) +
                __builtin_bswap32(length);
}

/* Returns a sum of words folded to 16 bits. */
static inline uint16_t harp_fold(uint64_t sum)
{
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

/* Returns the one's-complement sum of two folded sums. */
static inline uint16_t harp_sum_of_two(uint16_t a, uint16_t b)
{
  uint32_t sum = (uint32_t)a + b;
  return (uint16_t)(sum + (sum >> 16));
}

/* Returns the sum folded to 16 bits, not complemented, in network byte order as stored in memory.
 */
static inline uint16_t harp_sum_fold(const struct harp_sum *sum) { return harp_fold(sum->value); }

/* Returns the checksum of one buffer, ready to store with memcpy. */
uint16_t harp_checksum(const void *data, size_t length);

#endif
