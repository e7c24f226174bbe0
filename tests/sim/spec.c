/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario's keys and values, as text. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

struct key {
  const char *name;
  size_t offset;
  bool fraction;
  uint64_t initial, low, high;
  double initial_fraction;
  const char *meaning;
};

static const struct key keys[] = {
#define SIM_NUMBER(name, initial, low, high, meaning) \
  {#name, offsetof(struct sim_spec, name), false, initial, low, high, 0, meaning},
#define SIM_FRACTION(name, initial, meaning) \
  {#name, offsetof(struct sim_spec, name), true, 0, 0, 0, initial, meaning},
#include "tests/sim/spec_keys.def"
#undef SIM_NUMBER
#undef SIM_FRACTION
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static uint64_t *number(const struct sim_spec *spec, const struct key *key)
{
  return (uint64_t *)(void *)((uintptr_t)spec + key->offset);
}

static double *fraction(const struct sim_spec *spec, const struct key *key)
{
  return (double *)(void *)((uintptr_t)spec + key->offset);
}

void spec_default(struct sim_spec *spec)
{
  for (int i = 0; i < KEYS; i++) {
    if (keys[i].fraction) {
      *fraction(spec, &keys[i]) = keys[i].initial_fraction;
    } else {
      *number(spec, &keys[i]) = keys[i].initial;
    }
  }
}

static bool set(struct sim_spec *spec, const struct key *key, const char *value)
{
  char *end;
  if (key->fraction) {
    double got = strtod(value, &end);
    *fraction(spec, key) = got;
    return end != value && !*end && isfinite(got) && got >= 0 && got <= 1;
  }
  unsigned long long got = strtoull(value, &end, 10);
  *number(spec, key) = got;
  return *value >= '0' && *value <= '9' && !*end && got >= key->low && got <= key->high;
}

static bool parse_word(struct sim_spec *spec, char *word, char *error)
{
  char *value = strchr(word, '=');
  if (!value) {
    snprintf(error, SIM_MESSAGE, "scenario: '%.100s': write key=value, as in drop=0.01", word);
    return false;
  }
  *value++ = 0;
  for (int i = 0; i < KEYS; i++) {
    if (strcmp(keys[i].name, word) != 0) {
      continue;
    }
    if (set(spec, &keys[i], value)) {
      return true;
    }
    if (keys[i].fraction) {
      snprintf(error, SIM_MESSAGE, "scenario: %s=%.100s: allowed is 0 to 1", word, value);
    } else {
      snprintf(error, SIM_MESSAGE, "scenario: %s=%.100s: allowed is %" PRIu64 " to %" PRIu64, word,
               value, keys[i].low, keys[i].high);
    }
    return false;
  }
  snprintf(error, SIM_MESSAGE, "scenario: unknown key '%.100s'; --help lists the keys", word);
  return false;
}

/* Checks combinations of keys. */
static bool consistent(const struct sim_spec *spec, char *error)
{
  const char *wrong = NULL;
  if (spec->pattern == 0 && spec->hosts % 2) {
    wrong = "pairs need an even number of hosts";
  } else if (spec->bytes == 0 && spec->pattern == 2) {
    wrong = "a ring needs bytes";
  } else if (spec->warmup_us && spec->warmup_us >= spec->duration_us) {
    wrong = "warmup_us must end before duration_us";
  } else if (spec->path_mtu && spec->path_mtu < 576) {
    wrong = "path_mtu: stacks ignore values below 576";
  }
  if (wrong) {
    snprintf(error, SIM_MESSAGE, "scenario: %s", wrong);
  }
  return !wrong;
}

bool spec_parse(struct sim_spec *spec, const char *text, char error[SIM_MESSAGE])
{
  char copy[4096], *rest = copy;
  if (strlen(text) >= sizeof copy) {
    snprintf(error, SIM_MESSAGE, "scenario: longer than %zu bytes", sizeof copy - 1);
    return false;
  }
  strcpy(copy, text);
  for (char *word; (word = strsep(&rest, ","));) {
    if (*word && !parse_word(spec, word, error)) {
      return false;
    }
  }
  return consistent(spec, error);
}

void spec_write(const struct sim_spec *spec, FILE *out)
{
  const char *separator = "";
  for (int i = 0; i < KEYS; i++) {
    if (keys[i].fraction && *fraction(spec, &keys[i]) != keys[i].initial_fraction) {
      fprintf(out, "%s%s=%.17g", separator, keys[i].name, *fraction(spec, &keys[i]));
      separator = ",";
    } else if (!keys[i].fraction && *number(spec, &keys[i]) != keys[i].initial) {
      fprintf(out, "%s%s=%" PRIu64, separator, keys[i].name, *number(spec, &keys[i]));
      separator = ",";
    }
  }
}

void spec_help(FILE *out)
{
  for (int i = 0; i < KEYS; i++) {
    if (keys[i].fraction) {
      fprintf(out, "  %-15s %-14g probability: %s\n", keys[i].name, keys[i].initial_fraction,
              keys[i].meaning);
    } else {
      fprintf(out, "  %-15s %-14" PRIu64 " %s\n", keys[i].name, keys[i].initial, keys[i].meaning);
    }
  }
}
