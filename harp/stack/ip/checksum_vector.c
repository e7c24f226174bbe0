/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/ip/checksum_vector.h"

#include <string.h>

enum { SHORT = 128 }; /* bytes: headers are shorter, and vector code does not pay off */

/* Each loop serves sums with and without a copy. Inlined with the constant to = NULL, the compiler
 * removes the copy. */
#define LOOP static inline __attribute__((always_inline)) uint64_t
#define BOTH(loop) (to ? loop(to, from, length) : loop(NULL, from, length))

LOOP words_loop(uint8_t *to, const uint8_t *from, size_t length)
{
  uint64_t a = 0, b = 0;
  if (to) {
    memcpy(to, from, length);
  }
  while (length >= 32) {
    uint32_t w[8];
    memcpy(w, from, sizeof w);
    a += (uint64_t)w[0] + w[1] + w[2] + w[3];
    b += (uint64_t)w[4] + w[5] + w[6] + w[7];
    from += 32;
    length -= 32;
  }
  while (length >= 4) {
    uint32_t w;
    memcpy(&w, from, sizeof w);
    a += w;
    from += 4;
    length -= 4;
  }
  uint32_t tail = 0;
  memcpy(&tail, from, length);
  return a + b + tail;
}

static uint64_t sum_words(uint8_t *to, const uint8_t *from, size_t length)
{
  return BOTH(words_loop);
}

static bool always(void) { return true; }

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw")))

/* Eight 32-bit lanes. Even and odd lanes are widened to 64 bits separately. */
AVX2 LOOP avx2_loop(uint8_t *to, const uint8_t *from, size_t length)
{
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  const __m256i low = _mm256_set1_epi64x(0xffffffff);
  while (length >= 64) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
    if (to) {
      _mm256_storeu_si256((__m256i *)(void *)to, x);
      _mm256_storeu_si256((__m256i *)(void *)(to + 32), y);
      to += 64;
    }
    a = _mm256_add_epi64(a, _mm256_and_si256(x, low));
    b = _mm256_add_epi64(b, _mm256_srli_epi64(x, 32));
    c = _mm256_add_epi64(c, _mm256_and_si256(y, low));
    d = _mm256_add_epi64(d, _mm256_srli_epi64(y, 32));
    from += 64;
    length -= 64;
  }
  uint64_t lane[4];
  __m256i sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  memcpy(lane, &sum, sizeof lane);
  return lane[0] + lane[1] + lane[2] + lane[3] + words_loop(to, from, length);
}

AVX2 static uint64_t sum_avx2(uint8_t *to, const uint8_t *from, size_t length)
{
  return BOTH(avx2_loop);
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }

/* A mask selects the last bytes. Masked bytes are neither read nor written. The other loads have no
 * mask: AMD's processors fetch ahead for these only, and memory beyond the caches is four times as
 * fast. */
AVX512 LOOP avx512_loop(uint8_t *to, const uint8_t *from, size_t length)
{
  __m512i a = _mm512_setzero_si512(), b = a;
  const __m512i low = _mm512_set1_epi64(0xffffffff);
  while (length >= 64) {
    __m512i x = _mm512_loadu_si512(from);
    if (to) {
      _mm512_storeu_si512(to, x);
      to += 64;
    }
    a = _mm512_add_epi64(a, _mm512_and_si512(x, low));
    b = _mm512_add_epi64(b, _mm512_srli_epi64(x, 32));
    from += 64;
    length -= 64;
  }
  if (length) {
    __mmask64 mask = ~UINT64_C(0) >> (64 - length);
    __m512i x = _mm512_maskz_loadu_epi8(mask, from);
    if (to) {
      _mm512_mask_storeu_epi8(to, mask, x);
    }
    a = _mm512_add_epi64(a, _mm512_and_si512(x, low));
    b = _mm512_add_epi64(b, _mm512_srli_epi64(x, 32));
  }
  return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
}

AVX512 static uint64_t sum_avx512(uint8_t *to, const uint8_t *from, size_t length)
{
  return BOTH(avx512_loop);
}

static bool has_avx512(void)
{
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

#elif defined(__aarch64__)
#include <arm_neon.h>

/* Adjacent lanes are added in pairs to 64 bits. */
LOOP neon_loop(uint8_t *to, const uint8_t *from, size_t length)
{
  uint64x2_t a = vdupq_n_u64(0), b = a;
  while (length >= 32) {
    uint8x16_t x = vld1q_u8(from), y = vld1q_u8(from + 16);
    if (to) {
      vst1q_u8(to, x);
      vst1q_u8(to + 16, y);
      to += 32;
    }
    a = vpadalq_u32(a, vreinterpretq_u32_u8(x));
    b = vpadalq_u32(b, vreinterpretq_u32_u8(y));
    from += 32;
    length -= 32;
  }
  return vaddvq_u64(vaddq_u64(a, b)) + words_loop(to, from, length);
}

static uint64_t sum_neon(uint8_t *to, const uint8_t *from, size_t length)
{
  return BOTH(neon_loop);
}
#endif

const struct harp_summer harp_summers[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, sum_avx512},
    {"avx2", has_avx2, sum_avx2},
#elif defined(__aarch64__)
    {"neon", always, sum_neon},
#endif
    {"words", always, sum_words},
};
const unsigned harp_summer_count = sizeof harp_summers / sizeof harp_summers[0];

uint64_t harp_sum_bytes(uint8_t *to, const uint8_t *from, size_t length)
{
  if (length < SHORT) {
    return sum_words(to, from, length);
  }
  const struct harp_summer *summer = harp_summers;
  while (!summer->there()) {
    summer++;
  }
  return summer->sum(to, from, length);
}
