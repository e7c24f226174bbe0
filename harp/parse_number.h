/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HARP_PARSE_NUMBER_H
#define HARP_PARSE_NUMBER_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* Reads a decimal number from low to high that is the whole text. */
static inline bool parse_number(const char *text, long low, long high, long *value)
{
  char *end;
  errno = 0;
  *value = strtol(text, &end, 10);
  return !errno && end != text && !*end && *value >= low && *value <= high;
}

#endif
