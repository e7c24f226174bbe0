/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/crc32c.h"

#include <string.h>

/* The reflected polynomial is 0x82f63b78. Each lookup takes four bits, so the table fits a cache
 * line. Only CPUs without the instruction use this path. */
static uint32_t step(uint32_t crc, uint8_t byte)
{
  static const uint32_t table[16] = {
      0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
      0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
      0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
  };
  crc ^= byte;
  crc = crc >> 4 ^ table[crc & 15];
  return crc >> 4 ^ table[crc & 15];
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t length)
{
  const uint8_t *p = data;
  crc = ~crc;
  while (length-- > 0) {
    crc = step(crc, *p++);
  }
  return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data,
                                                               size_t length)
{
  const uint8_t *p = data;
  uint64_t wide = ~crc;
  while (length >= 8) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    wide = _mm_crc32_u64(wide, word);
    p += 8;
    length -= 8;
  }
  uint32_t narrow = (uint32_t)wide;
  while (length-- > 0) {
    narrow = _mm_crc32_u8(narrow, *p++);
  }
  return ~narrow;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t length)
{
  return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(crc, data, length)
                                          : crc32c_portable(crc, data, length);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

/* From asm/hwcap.h: the CRC32 instructions, optional in ARMv8.0. */
enum { CPU_HAS_CRC32 = 1 << 7 };

__attribute__((target("+crc"))) static uint32_t crc32c_arm(uint32_t crc, const void *data,
                                                           size_t length)
{
  const uint8_t *p = data;
  crc = ~crc;
  while (length >= 8) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    crc = __builtin_aarch64_crc32cx(crc, word);
    p += 8;
    length -= 8;
  }
  while (length-- > 0) {
    crc = __builtin_aarch64_crc32cb(crc, *p++);
  }
  return ~crc;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t length)
{
  return getauxval(AT_HWCAP) & CPU_HAS_CRC32 ? crc32c_arm(crc, data, length)
                                             : crc32c_portable(crc, data, length);
}
#else
uint32_t crc32c(uint32_t crc, const void *data, size_t length)
{
  return crc32c_portable(crc, data, length);
}
#endif
