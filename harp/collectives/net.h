/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net plugin of the process, and the reasons that it logs for its failures.
 *
 * Thread: any.
 */
#ifndef HARP_COLLECTIVES_NET_H
#define HARP_COLLECTIVES_NET_H

#include <stdbool.h>
#include <stddef.h>

#include "harp/bench/netapi.h"

/* Loads and initialises the plugin once. path: see harp_collectives_open. 0, or -1 with a
 * sentence. */
int net_open(const char *path, char *error);

/* Whether this process was forked from one in which the plugin was open. It has none of the threads
 * that make progress, and its copies of locks may be held for ever. */
bool net_forked(void);

/* Says so: -1 with a sentence in a forked process, else 0. */
int net_refuse_fork(char *error);

/* The plugin's calls, after net_open. */
const struct netapi *net_api(void);

/* The number of NICs, at least 1, after net_open. */
int net_devices(void);

/* Takes the plugin's last warning, or "" if none has come since the last call. */
void net_take_warning(char *text, size_t size);

#endif
