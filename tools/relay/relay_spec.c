/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the faults of a relay. The keys are those of the fault port, so that one spec works in
 * both.
 */
#include "tools/relay/relay.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int bad(char *error, const char *key, const char *value, const char *allowed)
{
  snprintf(error, RELAY_ERROR_SIZE, "relay spec: %s=%s: allowed is %s", key, value, allowed);
  return -EINVAL;
}

static bool whole_number(const char *value, uint64_t max, uint64_t *out)
{
  char *end;

  if (*value < '0' || *value > '9') {
    return false;
  }
  errno = 0;
  unsigned long long number = strtoull(value, &end, 10);
  if (errno || *end || number > max) {
    return false;
  }
  *out = number;
  return true;
}

static bool probability(const char *value, double *out)
{
  char *end;
  double number = strtod(value, &end);

  if (end == value || *end || !isfinite(number) || number < 0 || number > 1) {
    return false;
  }
  *out = number;
  return true;
}

/* "P" or "P/N": with probability P, 3 to N frames overtake the frame. */
static bool reorder(char *value, struct relay_spec *spec)
{
  char *slash = strchr(value, '/');
  uint64_t depth = spec->reorder_depth;

  if (slash) {
    *slash = 0;
    if (!whole_number(slash + 1, 1000, &depth) || depth < RELAY_REORDER_MIN) {
      return false;
    }
  }
  spec->reorder_depth = (uint32_t)depth;
  return probability(value, &spec->reorder);
}

static int set(struct relay_spec *spec, const char *key, char *value, char *error)
{
  static const char fraction[] = "a probability from 0 to 1";
  uint64_t number;

  if (!strcmp(key, "drop")) {
    return probability(value, &spec->drop) ? 0 : bad(error, key, value, fraction);
  }
  if (!strcmp(key, "duplicate")) {
    return probability(value, &spec->duplicate) ? 0 : bad(error, key, value, fraction);
  }
  if (!strcmp(key, "corrupt")) {
    return probability(value, &spec->corrupt) ? 0 : bad(error, key, value, fraction);
  }
  if (!strcmp(key, "reorder")) {
    return reorder(value, spec)
               ? 0
               : bad(error, key, value, "P or P/N, P from 0 to 1, N from 3 to 1000");
  }
  if (!strcmp(key, "drop_burst")) {
    if (!whole_number(value, 100000, &number) || !number) {
      return bad(error, key, value, "a number of frames from 1 to 100000");
    }
    spec->drop_burst = (uint32_t)number;
  } else if (!strcmp(key, "delay_us")) {
    if (!whole_number(value, 10000000, &number)) {
      return bad(error, key, value, "microseconds from 0 to 10000000");
    }
    spec->delay_ns = number * 1000;
  } else if (!strcmp(key, "rate_mbps")) {
    if (!whole_number(value, 1000000, &spec->rate_mbps)) {
      return bad(error, key, value, "Mbit/s from 0 (no limit) to 1000000");
    }
  } else if (!strcmp(key, "queue")) {
    if (!whole_number(value, 65536, &number) || number < 2 * RELAY_HOLD_MAX) {
      return bad(error, key, value, "a number of frames from 128 to 65536");
    }
    spec->queue = (uint32_t)number;
  } else if (!strcmp(key, "seed")) {
    if (!whole_number(value, UINT64_MAX, &spec->seed)) {
      return bad(error, key, value, "a whole number below 2^64");
    }
  } else {
    return bad(error, key, value,
               "drop, drop_burst, duplicate, reorder, corrupt, delay_us, rate_mbps, queue or seed");
  }
  return 0;
}

int relay_spec_parse(struct relay_spec *spec, const char *text, char *error)
{
  char copy[512];
  char *rest = copy;

  *spec = (struct relay_spec){.drop_burst = 1, .reorder_depth = 30, .queue = 4096, .seed = 1};
  if (strlen(text) >= sizeof copy) {
    snprintf(error, RELAY_ERROR_SIZE, "relay spec: longer than %zu bytes", sizeof copy - 1);
    return -EINVAL;
  }
  strcpy(copy, text);
  for (char *word; (word = strsep(&rest, ","));) {
    char *equals = strchr(word, '=');

    if (!*word) {
      continue;
    }
    if (!equals) {
      return bad(error, word, "", "key=value, as in drop=0.01");
    }
    *equals = 0;
    int status = set(spec, word, equals + 1, error);
    if (status) {
      return status;
    }
  }
  return 0;
}
