/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/variables.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "harp/engine/config_values.h"

enum {
  TOOLS = true,
  NAME_SIZE = 64,
  LIKE_MAX = 3, /* edit distance up to which a name counts as misspelt */
};

static const char prefix[] = "HARP_";
static const char tests_prefix[] = "HARP_TEST_";

const struct harp_variable_info harp_variable_info[HARP_VARIABLES] = {
#define HARP_VARIABLE(name, doc) {"HARP_" #name, doc},
#define HARP_TOOL_VARIABLE(name)
#include "harp/engine/variables.def"
#undef HARP_VARIABLE
#undef HARP_TOOL_VARIABLE
};

/* Keys are declared in lower case; spell() converts them to the environment's upper case. */
static const struct known {
  const char *name;
  bool silent; /* never suggested: it is read only from the file, or only by tools */
} known[] = {
#define HARP_KEY(name, kind, scope, preset, meaning, min, max, allowed, doc) {"HARP_" #name, scope},
#include "harp/engine/config_keys.def"
#undef HARP_KEY
#define HARP_VARIABLE(name, doc) {"HARP_" #name, false},
#define HARP_TOOL_VARIABLE(name) {"HARP_" #name, TOOLS},
#include "harp/engine/variables.def"
#undef HARP_VARIABLE
#undef HARP_TOOL_VARIABLE
};

enum { KNOWN = sizeof(known) / sizeof(known[0]) };

static char capital(char c) { return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c); }

static const char *spell(const struct known *one, char out[NAME_SIZE])
{
  size_t i = 0;
  for (; one->name[i] && i + 1 < NAME_SIZE; i++) {
    out[i] = capital(one->name[i]);
  }
  out[i] = '\0';
  return out;
}

static bool is_known(const char *name)
{
  char spelt[NAME_SIZE];
  for (int i = 0; i < KNOWN; i++) {
    if (strcmp(spell(&known[i], spelt), name) == 0) {
      return true;
    }
  }
  return strncmp(name, tests_prefix, sizeof(tests_prefix) - 1) == 0;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The Levenshtein distance between two names. The case of a does not matter; b is in upper case.
 * Both are shorter than NAME_SIZE. */
static size_t difference(const char *a, const char *b)
{
  size_t row[NAME_SIZE], width = strlen(b);
  for (size_t j = 0; j <= width; j++) {
    row[j] = j;
  }
  for (size_t i = 1; a[i - 1]; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= width; j++) {
      size_t changed = diagonal + (capital(a[i - 1]) != b[j - 1]);
      diagonal = row[j];
      row[j] = least(changed, least(row[j], row[j - 1]) + 1);
    }
  }
  return row[width];
}

/* The first number of an entry among the first count ones that has the smallest distance to a name;
 * -1 if no distance is small enough. The limit is one plus a third of the letters after HARP_, and
 * at most LIKE_MAX. all: also silent ones. */
static int most_similar(const char *name, int count, bool all)
{
  char spelt[NAME_SIZE];
  size_t length = strlen(name) - (sizeof(prefix) - 1);
  size_t best = least(LIKE_MAX, 1 + length / 3) + 1;
  int found = -1;
  for (int i = 0; i < count; i++) {
    size_t away = known[i].silent && !all ? best : difference(name, spell(&known[i], spelt));
    if (away < best) {
      best = away;
      found = i;
    }
  }
  return found;
}

/* The known name that is most similar; NULL if none is similar. */
static const char *nearest(const char *name, char out[NAME_SIZE])
{
  int found = most_similar(name, KNOWN, false);
  return found < 0 ? NULL : spell(&known[found], out);
}

const char *harp_variables_nearest_key(const char *name, size_t length)
{
  char spelt[NAME_SIZE];
  size_t before = sizeof(prefix) - 1;
  if (length >= NAME_SIZE - before || memchr(name, '\0', length)) {
    return NULL;
  }
  memcpy(spelt, prefix, before);
  memcpy(spelt + before, name, length);
  spelt[before + length] = '\0';
  int found = most_similar(spelt, HARP_CONFIG_KEYS, true); /* the keys come first in known */
  return found < 0 ? NULL : known[found].name + before;
}

/* The name of an entry NAME=VALUE, fit for a log line. */
static void name_of(const char *entry, char out[NAME_SIZE])
{
  size_t i = 0;
  for (; entry[i] && entry[i] != '=' && i + 1 < NAME_SIZE; i++) {
    unsigned char c = (unsigned char)entry[i];
    out[i] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
  }
  out[i] = '\0';
}

void harp_variables_unknown(char *const *environment, harp_variable_tell tell, void *user)
{
  for (; *environment; environment++) {
    char name[NAME_SIZE], like[NAME_SIZE];
    if (strncmp(*environment, prefix, sizeof(prefix) - 1) != 0) {
      continue;
    }
    name_of(*environment, name);
    if (!is_known(name)) {
      tell(name, nearest(name, like), user);
    }
  }
}
