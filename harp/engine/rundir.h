/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder where processes publish their statistics and leave their traces:
 * HARP_RUN_DIR, by default /usr/local/tfabric/tools/run, which `harp setup`
 * makes; if nothing can be written there, /dev/shm/harp-UID.
 *
 * File names end in .stat, .trace or (not ready yet) .new; they carry a random
 * id, because process ids repeat across containers that share the folder.
 *
 * Thread: any.
 */
#ifndef HARP_ENGINE_RUNDIR_H
#define HARP_ENGINE_RUNDIR_H

#include <stdbool.h>
#include <stddef.h>

#define HARP_RUN_DIR_DEFAULT "/usr/local/tfabric/tools/run"

enum { HARP_RUN_PATH_SIZE = 512 };

/*
 * A new file under a temporary name, opened for reading and writing, locked by
 * flock, with size bytes of real storage: a full file system says so here and
 * not by SIGBUS later. wish is the folder to try. Returns the descriptor and its
 * path, or a negative errno.
 */
int harp_rundir_create(const char *configured, size_t size, char path[HARP_RUN_PATH_SIZE]);

/* Gives a created file its final suffix (".stat"), in path too. 0, or -errno. */
int harp_rundir_publish(char path[HARP_RUN_PATH_SIZE], const char *suffix);

/* The folder that the environment asks for. */
const char *harp_rundir_configured(void);

/* /dev/shm/harp-UID, made if it is not there. Fails if it is not this user's
 * own folder: -EPERM, or what the system said. */
int harp_rundir_fallback(char *out, size_t size);

/* Removes what dead processes left in a folder: statistics at once, traces
 * beyond the newest 32. Silent: what cannot be removed stays. */
void harp_rundir_sweep(const char *folder);

#endif
