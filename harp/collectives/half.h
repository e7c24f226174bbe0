/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between 16-bit floats and float32, without branches, so that the compiler vectorises
 * loops over them. Rounding is to nearest, ties to even. The conversions of IEEE 754 binary16
 * follow Fabian Giesen, "Half to float done quick" (2012).
 */
#ifndef HARP_COLLECTIVES_HALF_H
#define HARP_COLLECTIVES_HALF_H

#include <stdint.h>
#include <string.h>

static inline float bits_float(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t float_bits(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float bfloat16_to_float(uint16_t value) { return bits_float((uint32_t)value << 16); }

static inline uint16_t float_to_bfloat16(float value)
{
  uint32_t bits = float_bits(value);
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  uint32_t nan = bits >> 16 | 0x40; /* rounding could turn a NaN into infinity */
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float float16_to_float(uint16_t value)
{
  uint32_t magnitude = (uint32_t)(value & 0x7fff) << 13;
  uint32_t exponent = magnitude & 0x0f800000;
  /* Multiplying by 2^112 moves the exponent's bias and makes subnormal numbers normal. */
  uint32_t usual = float_bits(bits_float(magnitude) * bits_float(0x77800000));
  uint32_t special = magnitude + 0x70000000; /* infinity and NaN */
  uint32_t sign = (uint32_t)(value & 0x8000) << 16;
  return bits_float((exponent == 0x0f800000 ? special : usual) | sign);
}

static inline uint16_t float_to_float16(float value)
{
  uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  uint32_t nan_or_inf = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  /* Adding 0.5 lets the adder align and round the mantissa of a subnormal result. */
  uint32_t subnormal = float_bits(bits_float(bits) + 0.5f) - 0x3f000000;
  uint32_t normal = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
  uint32_t small = bits < 0x38800000 ? subnormal : normal;
  return (uint16_t)((bits >= 0x47800000 ? nan_or_inf : small) | sign);
}

#endif
