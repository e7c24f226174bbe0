/* SPDX-License-Identifier: Apache-2.0 */
/* Sequence numbers: arithmetic modulo 2^32 (RFC 9293, 3.4). */
#ifndef HARP_STACK_SEQ_H
#define HARP_STACK_SEQ_H

#include <stdbool.h>
#include <stdint.h>

static inline int32_t seq_diff(uint32_t a, uint32_t b) { return (int32_t)(a - b); }
static inline bool seq_lt(uint32_t a, uint32_t b) { return seq_diff(a, b) < 0; }
static inline bool seq_le(uint32_t a, uint32_t b) { return seq_diff(a, b) <= 0; }
static inline bool seq_gt(uint32_t a, uint32_t b) { return seq_diff(a, b) > 0; }
static inline bool seq_ge(uint32_t a, uint32_t b) { return seq_diff(a, b) >= 0; }
static inline uint32_t seq_max(uint32_t a, uint32_t b) { return seq_gt(a, b) ? a : b; }
static inline uint32_t seq_min(uint32_t a, uint32_t b) { return seq_lt(a, b) ? a : b; }

#endif
