/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/checksum.h"

#include <string.h>

/* Sums native words: RFC 1071 (2)(B), the sum is independent of byte order up
 * to a swap, so it is stored as it was computed. */
static uint64_t sum_words(const uint8_t *p, size_t length) {
  uint64_t a = 0, b = 0;
  while (length >= 32) {
    uint32_t w[8];
    memcpy(w, p, sizeof w);
    a += (uint64_t)w[0] + w[1] + w[2] + w[3];
    b += (uint64_t)w[4] + w[5] + w[6] + w[7];
    p += 32;
    length -= 32;
  }
  while (length >= 4) {
    uint32_t w;
    memcpy(&w, p, sizeof w);
    a += w;
    p += 4;
    length -= 4;
  }
  uint32_t tail = 0;
  memcpy(&tail, p, length);
  return a + b + tail;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Eight 32-bit lanes widened to 64 bits: no carry is lost for any length. */
__attribute__((target("avx2"))) static uint64_t sum_avx2(const uint8_t *p, size_t length) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  const __m256i low = _mm256_set1_epi64x(0xffffffff);
  while (length >= 64) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    a = _mm256_add_epi64(a, _mm256_and_si256(x, low));
    b = _mm256_add_epi64(b, _mm256_srli_epi64(x, 32));
    c = _mm256_add_epi64(c, _mm256_and_si256(y, low));
    d = _mm256_add_epi64(d, _mm256_srli_epi64(y, 32));
    p += 64;
    length -= 64;
  }
  uint64_t lane[4];
  __m256i sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  memcpy(lane, &sum, sizeof lane);
  uint64_t total = 0;
  for (int i = 0; i < 4; i++) {
    total += (lane[i] & 0xffffffff) + (lane[i] >> 32);
  }
  return total + sum_words(p, length);
}
#endif

static uint64_t sum_bytes(const uint8_t *p, size_t length) {
#if defined(__x86_64__)
  if (length >= 256 && __builtin_cpu_supports("avx2")) {
    return sum_avx2(p, length);
  }
#endif
  return sum_words(p, length);
}

static uint16_t fold(uint64_t sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

void harp_sum_add(struct harp_sum *sum, const void *data, size_t length) {
  uint16_t part = fold(sum_bytes(data, length));
  if (sum->odd) {
    part = __builtin_bswap16(part);
  }
  sum->value += part;
  sum->odd ^= length & 1;
}

void harp_sum_add_pseudo(struct harp_sum *sum, uint32_t source, uint32_t destination,
                         uint8_t protocol, uint32_t length) {
  /* Words as they lie in memory: protocol and length in network order. */
  sum->value += (uint64_t)source + destination + __builtin_bswap16(protocol) +
                __builtin_bswap32(length);
}

uint16_t harp_sum_fold(const struct harp_sum *sum) { return fold(sum->value); }

uint16_t harp_checksum(const void *data, size_t length) {
  return (uint16_t)~fold(sum_bytes(data, length));
}
