/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/counters.h"

const struct harp_counter_info harp_counter_info[HARP_COUNTERS] = {
#define HARP_COUNTER(name, kind, doc) [HARP_COUNTER_##name] = {#name, doc, kind},
#include "harp/counters.def"
#undef HARP_COUNTER
};

const struct harp_counter_alias harp_counter_aliases[HARP_COUNTER_ALIASES] = {
#define HARP_COUNTER_ALIAS(old, name) {#old, HARP_COUNTER_##name},
#include "harp/counter_aliases.def"
#undef HARP_COUNTER_ALIAS
};
