/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every counter that HARP keeps, from the list in counters.def.
 *
 * An instance owns an array of HARP_COUNTERS 64-bit words. Only its poller writes them, except
 * those of harp_instance_count_shared. Readers (harp stat, the Prometheus exporter) copy them and
 * never write.
 */
#ifndef HARP_COUNTERS_H
#define HARP_COUNTERS_H

#include <stdint.h>

enum harp_counter {
#define HARP_COUNTER(name, kind, doc) HARP_COUNTER_##name,
#include "harp/counters.def"
#undef HARP_COUNTER
  HARP_COUNTERS
};

enum harp_counter_kind {
  HARP_COUNT, /* only grows */
  HARP_GAUGE, /* a level that moves both ways */
};

struct harp_counter_info {
  const char *name;
  const char *doc; /* one sentence */
  enum harp_counter_kind kind;
};

/* Indexed by enum harp_counter. */
extern const struct harp_counter_info harp_counter_info[HARP_COUNTERS];

enum {
#define HARP_COUNTER_ALIAS(old, name) HARP_COUNTER_ALIAS_##old,
#include "harp/counter_aliases.def"
#undef HARP_COUNTER_ALIAS
  HARP_COUNTER_ALIASES
};

/* The old name of a renamed counter. */
struct harp_counter_alias {
  const char *name;
  enum harp_counter counter;
};

extern const struct harp_counter_alias harp_counter_aliases[HARP_COUNTER_ALIASES];

#endif
