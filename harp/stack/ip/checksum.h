/* SPDX-License-Identifier: Apache-2.0 */
/* The Internet checksum (RFC 1071). */
#ifndef HARP_STACK_CHECKSUM_H
#define HARP_STACK_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * A running one's-complement sum over bytes that come in pieces; odd says
 * that an odd number of bytes went before. Start with {0}.
 */
struct harp_sum {
  uint64_t value;
  bool odd;
};

void harp_sum_add(struct harp_sum *sum, const void *data, size_t length);
/* The same, and copies the bytes on the way; to must not overlap from. */
void harp_sum_copy(struct harp_sum *sum, void *to, const void *from, size_t length);

/* Addresses in network order; length: TCP header and payload, bytes. */
void harp_sum_add_pseudo(struct harp_sum *sum, uint32_t source, uint32_t destination,
                         uint8_t protocol, uint32_t length);

/* The folded sum, not complemented, in the byte order of memory. */
uint16_t harp_sum_fold(const struct harp_sum *sum);

/* The checksum of one buffer, ready to store as it is. */
uint16_t harp_checksum(const void *data, size_t length);

#endif
