/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012): a keyed hash. Other
 * hosts cannot predict our sequence numbers, ports or hash buckets.
 */
#ifndef HARP_STACK_SIPHASH_H
#define HARP_STACK_SIPHASH_H

#include <stdint.h>

/* Hash of two 64-bit words under a 128-bit key. */
uint64_t harp_siphash(const uint64_t key[2], uint64_t first, uint64_t second);

#endif
