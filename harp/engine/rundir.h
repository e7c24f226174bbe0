/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run folder, in which processes publish their statistics and leave their traces: HARP_RUN_DIR,
 * by default /usr/local/tfabric/tools/run, which `harp setup` creates. If it is not writable:
 * /dev/shm/harp-UID, or /dev/shm/harp-UID-RANDOM if another user has taken that name. After that a
 * statistics file without a path, in memory.
 *
 * File names end in .stat, .trace or, while the file is incomplete, .new. They contain a random id,
 * because process ids repeat across containers that share the folder. Sockets (capture.h) have the
 * id of the statistics file beside them.
 *
 * Thread: any. The functions may block on the file system.
 */
#ifndef HARP_ENGINE_RUNDIR_H
#define HARP_ENGINE_RUNDIR_H

#include <stddef.h>

#define HARP_RUN_DIR_DEFAULT "/usr/local/tfabric/tools/run"

enum { HARP_RUN_PATH_SIZE = 512 };

/*
 * Creates a file with a temporary name in the folder `configured`, open for reading and writing and
 * locked by flock. All users may read it. Its size bytes are allocated, so a full file system
 * causes an error here and not SIGBUS later. Returns the descriptor, with the file's path in path,
 * or a negative errno.
 */
int harp_rundir_create(const char *configured, size_t size, char path[HARP_RUN_PATH_SIZE]);

/*
 * Creates a file without a path in memory (memfd_create), open, locked and allocated as above. Root
 * of the host finds it by its name in /proc/PID/fd: an id and ".stat". Returns the descriptor, or a
 * negative errno.
 */
int harp_rundir_create_in_memory(size_t size);

/* Renames a created file to its final suffix, such as ".stat", and updates path. 0, or -errno. */
int harp_rundir_publish(char path[HARP_RUN_PATH_SIZE], const char *suffix);

/* HARP_RUN_DIR, or the default. */
const char *harp_rundir_configured(void);

/* Writes the path of this user's folder in /dev/shm to out, and creates the folder if it does not
 * exist. out has 64 bytes or more. 0, or the -errno of a system call. */
int harp_rundir_fallback(char *out, size_t size);

/* Removes files of dead processes from a folder: all statistics, sockets and incomplete files, and
 * all traces of this user but the newest 32. Leaves the files of other users, except as root. Looks
 * at 8192 entries at most. Errors are ignored. */
void harp_rundir_sweep(const char *folder);

#endif
