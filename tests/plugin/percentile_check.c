/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the median and the 99th percentile of 1, 2, ... COUNT. Usage: percentile_check COUNT */
#include <stdio.h>
#include <stdlib.h>

#include "harp/bench/percentile.h"

int main(int argc, char **argv)
{
  static double values[1000];
  size_t count = argc == 2 ? (size_t)atoi(argv[1]) : 0;
  if (count < 1 || count > sizeof(values) / sizeof(values[0])) {
    return 2;
  }
  for (size_t i = 0; i < count; i++) {
    values[i] = (double)(i + 1);
  }
  printf("%g %g\n", median_of(values, count), percentile_99_of(values, count));
  return 0;
}
