/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds a lock (flock) on a file. Anybody who can read a file can lock it, so whoever is
 * kept out by a lock has to learn by whom.
 *
 * Thread: any; reads /proc only.
 */
#ifndef HARP_ENGINE_LOCK_HOLDER_H
#define HARP_ENGINE_LOCK_HOLDER_H

#include <stddef.h>

/* Writes "process 123 (python)", with " of user 1000" where that is not this process's own;
 * "a process unknown here" where the system does not tell, as for another container's. */
void harp_lock_holder(int fd, char *out, size_t size);

#endif
