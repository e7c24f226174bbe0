/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The build compiles this file once for each instruction set, as folds.c. HARP_CANDIDATES is then
 * the function's name. A compiler does not vectorise a loop that stores some elements, so each set
 * has a block of its own.
 */
#include "harp/collectives/candidates.h"

#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { BLOCK = 16 }; /* elements: one vector of AVX-512 */

/* Adds `count` elements. A bit of the result is set for each sum that is not below the bound, so
 * also for NaN. */
static inline uint32_t add_each(float *restrict rest, float *restrict gradient, size_t count,
                                float bound)
{
  uint32_t mask = 0;
  for (size_t i = 0; i < count; i++) {
    rest[i] += gradient[i];
    gradient[i] = 0;
    mask |= (uint32_t)!(fabsf(rest[i]) < bound) << i;
  }
  return mask;
}

#if defined(__AVX512F__)

static inline uint32_t add_block(float *restrict rest, float *restrict gradient, float bound)
{
  __m512 sum = _mm512_add_ps(_mm512_loadu_ps(rest), _mm512_loadu_ps(gradient));
  _mm512_storeu_ps(rest, sum);
  _mm512_storeu_ps(gradient, _mm512_setzero_ps());
  return _mm512_cmp_ps_mask(_mm512_abs_ps(sum), _mm512_set1_ps(bound), _CMP_NLT_UQ);
}

#elif defined(__AVX2__)

static inline uint32_t add_half(float *restrict rest, float *restrict gradient, float bound)
{
  __m256 sum = _mm256_add_ps(_mm256_loadu_ps(rest), _mm256_loadu_ps(gradient));
  _mm256_storeu_ps(rest, sum);
  _mm256_storeu_ps(gradient, _mm256_setzero_ps());
  __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), sum);
  __m256 above = _mm256_cmp_ps(size, _mm256_set1_ps(bound), _CMP_NLT_UQ);
  return (uint32_t)_mm256_movemask_ps(above);
}

static inline uint32_t add_block(float *restrict rest, float *restrict gradient, float bound)
{
  return add_half(rest, gradient, bound) | add_half(rest + 8, gradient + 8, bound) << 8;
}

#elif defined(__ARM_NEON) && defined(__aarch64__)

static inline uint32_t add_block(float *restrict rest, float *restrict gradient, float bound)
{
  static const uint32_t bits[4] = {1, 2, 4, 8};
  uint32x4_t mask = vdupq_n_u32(0);
  for (unsigned i = 0; i < BLOCK; i += 4) {
    float32x4_t sum = vaddq_f32(vld1q_f32(rest + i), vld1q_f32(gradient + i));
    vst1q_f32(rest + i, sum);
    vst1q_f32(gradient + i, vdupq_n_f32(0));
    uint32x4_t below = vcltq_f32(vabsq_f32(sum), vdupq_n_f32(bound));
    uint32x4_t places = vshlq_u32(vld1q_u32(bits), vdupq_n_s32((int32_t)i));
    mask = vorrq_u32(mask, vbicq_u32(places, below));
  }
  return vaddvq_u32(mask);
}

#else

static inline uint32_t add_block(float *restrict rest, float *restrict gradient, float bound)
{
  return add_each(rest, gradient, BLOCK, bound);
}

#endif

size_t HARP_CANDIDATES(float *restrict rest, float *restrict gradient, size_t count, float bound,
                       int32_t *restrict indices, float *restrict values, size_t room)
{
  size_t found = 0;
  for (size_t at = 0; at < count; at += BLOCK) {
    uint32_t mask = count - at >= BLOCK ? add_block(rest + at, gradient + at, bound)
                                        : add_each(rest + at, gradient + at, count - at, bound);
    for (; mask; mask &= mask - 1) { /* most blocks of a sparse choice have none */
      size_t index = at + (unsigned)__builtin_ctz(mask);
      if (found < room) {
        indices[found] = (int32_t)index;
        values[found] = rest[index];
      }
      found++;
    }
  }
  return found;
}
