/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/conf_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *harp_conf_folder_path(void)
{
  const char *folder = getenv("HARP_CONF_DIR");

  return folder && *folder ? folder : HARP_CONF_DIR_DEFAULT;
}

static int is_configuration(const struct dirent *entry)
{
  size_t length = strlen(entry->d_name);

  return length > 5 && strncmp(entry->d_name, "ztcp", 4) == 0 &&
         strcmp(entry->d_name + length - 5, ".conf") == 0;
}

static int open_file(struct harp_conf_file *file, const char *folder, const char *name, char *error)
{
  char path[sizeof(file->config.path)];

  if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
    return harp_config_fail(error, -ENAMETOOLONG,
                            "%.200s: the folder's name is too long; shorten "
                            "HARP_CONF_DIR",
                            folder);
  }
  file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file->fd < 0) {
    int code = errno;
    return harp_config_fail(error, -code,
                            "%.200s: cannot be opened: %s; make it readable for this user", path,
                            strerror(code));
  }
  return harp_config_read(file->fd, path, &file->config, error);
}

void harp_conf_folder_close(struct harp_conf_folder *folder)
{
  for (int i = 0; i < folder->count; i++) {
    if (folder->files[i].fd >= 0) {
      close(folder->files[i].fd);
    }
  }
  free(folder->files);
  folder->files = NULL;
  folder->count = 0;
}

static int open_files(struct harp_conf_folder *folder, struct dirent **entries, int count,
                      char *error)
{
  int rc = 0;

  folder->count = 0;
  folder->files = calloc((size_t)count, sizeof(*folder->files));
  if (!folder->files) {
    return harp_config_fail(error, -ENOMEM, "%.200s: no memory to read %d files", folder->path,
                            count);
  }
  while (rc == 0 && folder->count < count) {
    rc = open_file(&folder->files[folder->count], folder->path, entries[folder->count]->d_name,
                   error);
    folder->count++;
  }
  if (rc) {
    harp_conf_folder_close(folder);
  }
  return rc;
}

int harp_conf_folder_read(struct harp_conf_folder *folder, const char *path, char *error)
{
  struct dirent **entries;
  int count = scandir(path, &entries, is_configuration, versionsort);
  int rc;

  *folder = (struct harp_conf_folder){.path = path};
  if (count < 0) {
    rc = errno;
    return harp_config_fail(error, -rc,
                            "no configuration: folder %.200s: %s; run 'harp setup', or name the "
                            "folder in HARP_CONF_DIR",
                            path, strerror(rc));
  }
  if (count == 0) {
    rc = harp_config_fail(error, -ENOENT,
                          "no configuration: folder %.200s holds no ztcp*.conf; run "
                          "'harp setup', or name the folder in HARP_CONF_DIR",
                          path);
  } else if (count > HARP_CONF_FILES_MAX) {
    rc = harp_config_fail(error, -EINVAL,
                          "%.200s holds %d ztcp*.conf and HARP reads at most %d; remove some", path,
                          count, HARP_CONF_FILES_MAX);
  } else {
    rc = open_files(folder, entries, count, error);
  }
  for (int i = 0; i < count; i++) {
    free(entries[i]);
  }
  free(entries);
  return rc;
}
