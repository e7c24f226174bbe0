/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HARP's variables of the environment, and a check for unknown ones, which are mostly misspelt.
 *
 * Thread: any, but not at the same time as setenv; no function here keeps state.
 */
#ifndef HARP_ENGINE_VARIABLES_H
#define HARP_ENGINE_VARIABLES_H

#include <stddef.h>

enum harp_variable {
#define HARP_VARIABLE(name, doc) HARP_VARIABLE_##name,
#define HARP_TOOL_VARIABLE(name)
#include "harp/engine/variables.def"
#undef HARP_VARIABLE
#undef HARP_TOOL_VARIABLE
  HARP_VARIABLES
};

struct harp_variable_info {
  const char *name; /* with HARP_ */
  const char *doc;
};

/* Indexed by enum harp_variable: the variables besides the keys of ztcp*.conf. */
extern const struct harp_variable_info harp_variable_info[HARP_VARIABLES];

/* name: the variable's name, truncated to 63 bytes, with '?' for unprintable bytes. nearest: the
 * most similar variable that the environment may set; NULL if none is similar. */
typedef void (*harp_variable_tell)(const char *name, const char *nearest, void *user);

/* Calls tell for each unknown variable that begins with HARP_. environment: as environ, entries
 * NAME=VALUE and NULL at the end. */
void harp_variables_unknown(char *const *environment, harp_variable_tell tell, void *user);

/* The key of ztcp*.conf that is most similar to a name of length bytes; NULL if none is similar. */
const char *harp_variables_nearest_key(const char *name, size_t length);

#endif
