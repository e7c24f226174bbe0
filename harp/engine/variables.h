/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variables of the environment that are HARP's: which there are, and which of those that are
 * set nothing reads, mostly because they are misspelt.
 *
 * Thread: any that does not run beside a setenv; no function here keeps state.
 */
#ifndef HARP_ENGINE_VARIABLES_H
#define HARP_ENGINE_VARIABLES_H

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

/* Indexed by enum harp_variable: those that are in force beside the keys of ztcp*.conf. */
extern const struct harp_variable_info harp_variable_info[HARP_VARIABLES];

/* name: as it is set, cut to 63 bytes, those that do not print replaced by '?'. nearest: the known
 * variable that is spelt most like it and that the environment may set; NULL if none is like it. */
typedef void (*harp_variable_tell)(const char *name, const char *nearest, void *user);

/* Calls tell for each variable of environment (as environ: NAME=VALUE, NULL at its end) that
 * begins with HARP_ and that nothing reads. */
void harp_variables_unknown(char *const *environment, harp_variable_tell tell, void *user);

#endif
