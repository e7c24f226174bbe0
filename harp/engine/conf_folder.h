/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ztcp*.conf of the configuration folder, read through descriptors that can be locked later. So
 * a process uses the text that it has claimed.
 *
 * Thread: any, one at a time per folder.
 */
#ifndef HARP_ENGINE_CONF_FOLDER_H
#define HARP_ENGINE_CONF_FOLDER_H

#include "harp/engine/config.h"

enum { HARP_CONF_FILES_MAX = 256 };

#define HARP_CONF_DIR_DEFAULT "/usr/local/tfabric/tools/config"

struct harp_conf_file {
  int fd; /* -1: another owner has taken it */
  struct harp_config config;
};

struct harp_conf_folder {
  const char *path;
  int count;                    /* files, in the order of their versions: ztcp2 before ztcp10 */
  struct harp_conf_file *files; /* owned */
};

/* HARP_CONF_DIR, or the default. Points into the environment. */
const char *harp_conf_folder_path(void);

/* Reads all files of the folder. 0, or a negative errno and one line in error
 * (HARP_CONFIG_ERROR_SIZE bytes): -ENOENT: no folder, or no ztcp*.conf in it; -EINVAL: a file is
 * invalid, or there are too many; -ENAMETOOLONG; -ENOMEM; or the errno of a system call. */
int harp_conf_folder_read(struct harp_conf_folder *folder, const char *path, char *error);
void harp_conf_folder_close(struct harp_conf_folder *folder);

#endif
