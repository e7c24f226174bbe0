/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the process that holds a lock (flock) on a file. Every user who can read a file can lock
 * it, so an error message must name the process that holds the lock.
 *
 * Thread: any; reads /proc only.
 */
#ifndef HARP_ENGINE_LOCK_HOLDER_H
#define HARP_ENGINE_LOCK_HOLDER_H

#include <stddef.h>

/* Writes "process 123 (python)", with " of user 1000" if that is another user than this process's.
 * Writes "an unknown process" if the system does not tell, for example for another container's
 * process. */
void harp_lock_holder(int fd, char *out, size_t size);

#endif
