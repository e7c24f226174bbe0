/* SPDX-License-Identifier: Apache-2.0 */
#include "dpdk_glue/fault/fault_spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk_glue/fail.h"
#include "dpdk_glue/port.h"

enum kind {
  NUMBER,      /* 0 to most */
  COUNT,       /* 1 to most */
  INDEX,       /* 0 to most - 1, stored plus one */
  PROBABILITY, /* 0 to 1 */
  REORDER,     /* P or P/N */
  SIDE,        /* tx, rx, both */
  PATH,
};

struct key {
  const char *name;
  enum kind kind;
  size_t offset;
  uint64_t most;
  bool at_open; /* true: not allowed in a control file */
  const char *allowed;
};

#define AT(field) offsetof(struct fault_spec, field)

static const struct key keys[] = {
    {"drop", PROBABILITY, AT(drop), 0, false, "a probability, 0 to 1"},
    {"drop_burst", COUNT, AT(drop_burst), 1000000, false, "a count of frames, 1 to 1000000"},
    {"duplicate", PROBABILITY, AT(duplicate), 0, false, "a probability, 0 to 1"},
    {"reorder", REORDER, AT(reorder), 1000, false,
     "a probability, 0 to 1, and optionally by how many frames: 0.01/3; at most 1000"},
    {"corrupt", PROBABILITY, AT(corrupt), 0, false, "a probability, 0 to 1"},
    {"delay_us", NUMBER, AT(delay_us), 10000000, false, "microseconds, 0 to 10000000"},
    {"rate_mbps", NUMBER, AT(rate_mbps), 1000000, false, "Mbit/s, 0 (no limit) to 1000000"},
    {"blackhole", NUMBER, AT(blackhole), 1, false, "0 or 1"},
    {"side", SIDE, AT(side), 0, false, "tx, rx or both"},
    {"port", NUMBER, AT(tcp_port), 65535, false, "a TCP port, 1 to 65535, or 0 for all"},
    {"flow", INDEX, AT(flow), 1024, false, "the index of a local port, 0 to 1023"},
    {"seed", NUMBER, AT(seed), UINT64_MAX, true, "a whole number"},
    {"tso", NUMBER, AT(tso), 1, true, "0 or 1"},
    {"hold_us", NUMBER, AT(hold_us), 1000000, true, "microseconds, 0 to 1000000"},
    {"control", PATH, AT(control), 0, true, "the path of a file, at most 255 bytes"},
};

enum { KEYS = sizeof(keys) / sizeof(keys[0]), ITEM_MAX = 300 };

#define CERTAIN ((double)(UINT64_C(1) << 32))

void harp_fault_spec_default(struct fault_spec *spec)
{
  memset(spec, 0, sizeof(*spec));
  spec->drop_burst = 1;
  spec->reorder_by = 3;
  spec->seed = 1;
  spec->side = FAULT_TX;
}

static bool parse_number(const char *text, uint64_t most, uint64_t *value)
{
  char *end;
  errno = 0;
  *value = strtoull(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *value <= most;
}

static bool parse_probability(const char *text, const char **end, uint64_t *value)
{
  double p = strtod(text, (char **)(uintptr_t)end);
  if (*end == text || !(p >= 0 && p <= 1)) {
    return false;
  }
  *value = (uint64_t)(p * CERTAIN);
  return true;
}

static bool parse_reorder(const char *text, uint64_t most, struct fault_spec *spec)
{
  const char *end;
  if (!parse_probability(text, &end, &spec->reorder)) {
    return false;
  }
  if (*end == '\0') {
    return true;
  }
  return *end == '/' && parse_number(end + 1, most, &spec->reorder_by) && spec->reorder_by > 0;
}

static bool parse_side(const char *text, uint64_t *side)
{
  static const struct {
    const char *name;
    uint64_t side;
  } sides[] = {{"tx", FAULT_TX}, {"rx", FAULT_RX}, {"both", FAULT_TX | FAULT_RX}};
  for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
    if (strcmp(text, sides[i].name) == 0) {
      *side = sides[i].side;
      return true;
    }
  }
  return false;
}

static bool parse_value(const struct key *key, const char *text, struct fault_spec *spec)
{
  void *field = (char *)spec + key->offset;
  const char *end;
  switch (key->kind) {
  case NUMBER: return parse_number(text, key->most, field);
  case COUNT: return parse_number(text, key->most, field) && *(uint64_t *)field > 0;
  case INDEX: return parse_number(text, key->most - 1, field) && ++*(uint64_t *)field;
  case PROBABILITY: return parse_probability(text, &end, field) && *end == '\0';
  case REORDER: return parse_reorder(text, key->most, spec);
  case SIDE: return parse_side(text, field);
  case PATH:
    return text[0] &&
           snprintf(field, sizeof(spec->control), "%s", text) < (int)sizeof(spec->control);
  }
  return false;
}

static int unknown_key(const char *item, bool running, char *error)
{
  char names[256] = "";
  size_t used = 0;
  for (int i = 0; i < KEYS && used < sizeof(names); i++) {
    if (!(running && keys[i].at_open)) {
      used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                               keys[i].name);
    }
  }
  return harp_port_fail(error, -EINVAL,
                        "fault: \"%.100s\": unknown key; use key=value with one "
                        "of %s",
                        item, names);
}

static int parse_item(struct fault_spec *spec, const char *item, bool running, char *error)
{
  const char *equals = strchr(item, '=');
  size_t length = equals ? (size_t)(equals - item) : strlen(item);
  for (int i = 0; i < KEYS; i++) {
    const struct key *key = &keys[i];
    if (strlen(key->name) != length || strncmp(key->name, item, length) != 0) {
      continue;
    }
    if (running && key->at_open) {
      break;
    }
    if (!equals || !parse_value(key, equals + 1, spec)) {
      return harp_port_fail(error, -EINVAL, "fault: \"%.150s\": %s takes %s", item, key->name,
                            key->allowed);
    }
    return 0;
  }
  return unknown_key(item, running, error);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Copies the item at the start of text into item, without surrounding white space. Returns the
 * bytes of text that it used, including the comma. */
static size_t next_item(const char *text, size_t length, char item[ITEM_MAX])
{
  size_t end = 0;
  while (end < length && text[end] != ',') {
    end++;
  }
  size_t first = 0, last = end;
  while (first < last && is_space(text[first])) {
    first++;
  }
  while (last > first && is_space(text[last - 1])) {
    last--;
  }
  size_t size = last - first < ITEM_MAX ? last - first : ITEM_MAX - 1;
  memcpy(item, text + first, size);
  item[size] = '\0';
  return end < length ? end + 1 : end;
}

int harp_fault_spec_parse(struct fault_spec *spec, const char *text, size_t length, bool running,
                          char *error)
{
  struct fault_spec changed = *spec;
  char item[ITEM_MAX];
  while (length > 0) {
    size_t taken = next_item(text, length, item);
    text += taken;
    length -= taken;
    int rc = item[0] ? parse_item(&changed, item, running, error) : 0;
    if (rc < 0) {
      return rc;
    }
  }
  /* The checksum of a large segment cannot be completed, because each of its segments has its
   * own. */
  if (changed.tso && changed.corrupt) {
    return harp_port_fail(error, -EINVAL,
                          "fault: corrupt with tso=1: a large segment cannot be "
                          "corrupted as one frame; leave tso=1 out");
  }
  *spec = changed;
  return 0;
}
