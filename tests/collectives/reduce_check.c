/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reductions, the conversions of 16-bit floats for each of their values, and the instruction
 * sets, which must give the same bits.
 *
 * Exit: 0, or 1 after printing what is wrong.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "harp/collectives/half.h"
#include "harp/collectives/reduce.h"

static unsigned wrong;

static void expect(bool right, const char *what)
{
  if (!right && wrong++ < 20) {
    printf("wrong: %s\n", what);
  }
}

struct format {
  const char *name;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t infinity;
};

/* Each number keeps its bits. Numbers between two neighbours go to the nearer one, and the middle
 * to the even one. */
static void check_format(const struct format *format)
{
  for (uint16_t bits = 0; bits < format->infinity; bits++) {
    float low = format->widen(bits);
    float step = bits + 1 < format->infinity ? format->widen((uint16_t)(bits + 1)) - low
                                             : low - format->widen((uint16_t)(bits - 1));
    float middle = low + step / 2;
    uint16_t even = bits % 2 == 0 ? bits : (uint16_t)(bits + 1);
    expect(format->narrow(low) == bits, format->name);
    expect(format->narrow(-low) == (bits | 0x8000), format->name);
    expect(format->narrow(nextafterf(middle, 0)) == bits, format->name);
    expect(format->narrow(middle) == even, format->name);
    expect(format->narrow(nextafterf(middle, INFINITY)) == bits + 1, format->name);
  }
  expect(isinf(format->widen(format->infinity)), "infinity");
  expect(format->narrow(INFINITY) == format->infinity, "infinity");
  expect(format->narrow(FLT_MAX) == format->infinity, "overflow");
  expect(isnan(format->widen(format->narrow(NAN))), "NaN");
  uint32_t low_nan = 0x7f800001; /* its payload is in the bits that are cut */
  expect(isnan(format->widen(format->narrow(bits_float(low_nan)))), "NaN with a low payload");
}

static void check_nan(void)
{
  struct reduction largest, least;
  reduction_init(&largest, HARP_FLOAT32, HARP_MAX, 2);
  reduction_init(&least, HARP_FLOAT32, HARP_MIN, 2);
  float with[] = {NAN, 1, 2}, other[] = {1, NAN, 3};
  reduction_fold(&largest, with, other, 3);
  expect(isnan(with[0]) && isnan(with[1]) && with[2] == 3, "max with NaN");
  float again[] = {NAN, 1, 2};
  reduction_fold(&least, again, other, 3);
  expect(isnan(again[0]) && isnan(again[1]) && again[2] == 2, "min with NaN");
}

/* Two ranks may have the operands in different orders, and must get the same bits. */
static void check_zeros(enum harp_dtype dtype, size_t size, const void *plus, const void *minus)
{
  for (int is_max = 0; is_max < 2; is_max++) {
    struct reduction reduction;
    reduction_init(&reduction, dtype, is_max ? HARP_MAX : HARP_MIN, 2);
    for (int order = 0; order < 2; order++) {
      double kept, other;
      memcpy(&kept, order ? plus : minus, size);
      memcpy(&other, order ? minus : plus, size);
      reduction_fold(&reduction, &kept, &other, 1);
      expect(memcmp(&kept, is_max ? plus : minus, size) == 0, "-0 is less than +0");
    }
  }
}

static void check_integers(void)
{
  struct reduction average, least;
  reduction_init(&average, HARP_INT8, HARP_AVERAGE, 3);
  int8_t sums[] = {-7, 7, 8, -128};
  reduction_store(&average, sums, sums, 4);
  expect(sums[0] == -2 && sums[1] == 2 && sums[2] == 2 && sums[3] == -42, "average of int8");
  reduction_init(&average, HARP_INT8, HARP_AVERAGE, 200);
  int8_t many[] = {-128, 127};
  reduction_store(&average, many, many, 2);
  expect(many[0] == 0 && many[1] == 0, "average of more ranks than int8 holds");
  reduction_init(&least, HARP_INT16, HARP_MIN, 2);
  int16_t a[] = {-5, 5}, b[] = {3, -3};
  reduction_fold(&least, a, b, 2);
  expect(a[0] == -5 && a[1] == -3, "min of int16");
}

/* 1 + 2^-9 four times: bfloat16 would lose each 2^-9, float32 keeps them. */
static void check_width(void)
{
  struct reduction sum;
  reduction_init(&sum, HARP_BFLOAT16, HARP_SUM, 5);
  uint16_t one = float_to_bfloat16(1), small = float_to_bfloat16(1.0f / 512), result;
  float wide;
  reduction_load(&sum, &wide, &one, 1);
  for (int i = 0; i < 4; i++) {
    reduction_fold(&sum, &wide, &small, 1);
  }
  reduction_store(&sum, &result, &wide, 1);
  expect(bfloat16_to_float(result) == 1 + 1.0f / 128, "sum of bfloat16 in float32");
}

enum { ODD = 1003, VALUES = 65536 }; /* elements: no multiple of a vector; all 16-bit numbers */

/* Numbers without a NaN: which of two NaNs a sum keeps is open. */
static void fill(uint8_t *data, size_t bytes, enum harp_dtype dtype)
{
  static uint32_t random = 1;
  float *floats = (float *)data;
  double *doubles = (double *)data;
  for (size_t i = 0; i < bytes; i++) {
    random = random * 1664525 + 1013904223;
    data[i] = dtype == HARP_BOOL ? random >> 31 : (uint8_t)(random >> 24);
  }
  for (size_t i = 0; dtype == HARP_FLOAT32 && i < bytes / sizeof *floats; i++) {
    floats[i] = (float)data[4 * i] / 3 - 40;
  }
  for (size_t i = 0; dtype == HARP_FLOAT64 && i < bytes / sizeof *doubles; i++) {
    doubles[i] = data[8 * i] / 3.0 - 40;
  }
}

static void compare_folds(const struct folds *set, const struct folds *plain, int dtype, int op)
{
  static _Alignas(64) uint8_t one[ODD * 8], other[ODD * 8], right[ODD * 8];
  struct reduction reduction;
  if (!reduction_init(&reduction, dtype, op, 3)) {
    return;
  }
  bool is_short = dtype == HARP_FLOAT16 || dtype == HARP_BFLOAT16;
  fill(one, sizeof one, is_short ? HARP_FLOAT32 : reduction.dtype);
  fill(other, sizeof other, is_short ? HARP_FLOAT32 : reduction.dtype);
  memcpy(right, one, sizeof one);
  set->fold[dtype][op](one, other, ODD);
  plain->fold[dtype][op](right, other, ODD);
  expect(memcmp(one, right, sizeof one) == 0, "a fold of an instruction set");
}

static void compare_conversions(const struct folds *set, const struct folds *plain, int dtype)
{
  static float wide[VALUES], right_wide[VALUES];
  static uint16_t narrow[VALUES], right_narrow[VALUES];
  for (size_t i = 0; i < VALUES; i++) {
    narrow[i] = (uint16_t)i;
  }
  set->widen(dtype, wide, narrow, VALUES - 1);
  plain->widen(dtype, right_wide, narrow, VALUES - 1);
  expect(memcmp(wide, right_wide, sizeof wide) == 0, "widening by an instruction set");
  set->narrow(dtype, narrow, wide, VALUES - 1, 3);
  plain->narrow(dtype, right_narrow, wide, VALUES - 1, 3);
  right_narrow[VALUES - 1] = narrow[VALUES - 1]; /* not converted */
  expect(memcmp(narrow, right_narrow, sizeof narrow) == 0, "narrowing by an instruction set");
}

/* Each set that this CPU runs, beside the plain one, which is the last. */
static void check_sets(void)
{
  unsigned count = 0;
  while (folds_choose(count)) {
    count++;
  }
  const struct folds *plain = folds_choose(count - 1);
  for (unsigned i = 0; i < count; i++) {
    for (int dtype = 0; dtype < HARP_DTYPES; dtype++) {
      for (int op = 0; op < HARP_REDUCTIONS; op++) {
        compare_folds(folds_choose(i), plain, dtype, op);
      }
    }
    compare_conversions(folds_choose(i), plain, HARP_FLOAT16);
    compare_conversions(folds_choose(i), plain, HARP_BFLOAT16);
  }
  printf("%u instruction sets\n", count);
}

static void check_refusals(void)
{
  struct reduction reduction;
  expect(!reduction_init(&reduction, HARP_FLOAT32, HARP_BXOR, 2), "xor of floats");
  expect(!reduction_init(&reduction, HARP_BOOL, HARP_AVERAGE, 2), "average of bool");
  expect(!reduction_init(&reduction, HARP_DTYPES, HARP_SUM, 2), "unknown type");
  expect(!reduction_init(&reduction, HARP_INT8, HARP_REDUCTIONS, 2), "unknown reduction");
}

int main(void)
{
  check_format(&(struct format){"bfloat16", bfloat16_to_float, float_to_bfloat16, 0x7f80});
  check_format(&(struct format){"float16", float16_to_float, float_to_float16, 0x7c00});
  check_nan();
  check_zeros(HARP_FLOAT32, sizeof(float), &(float){0.0f}, &(float){-0.0f});
  check_zeros(HARP_FLOAT64, sizeof(double), &(double){0.0}, &(double){-0.0});
  check_integers();
  check_width();
  check_sets();
  check_refusals();
  printf("%u wrong\n", wrong);
  return wrong > 0;
}
