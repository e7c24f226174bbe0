/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the file that HARP_KEY_FILE names, and rejects a file that cannot be a key. The plugin
 * derives its key from the bytes.
 *
 * Thread: any; no function here keeps state.
 */
#ifndef HARP_ENGINE_KEY_FILE_H
#define HARP_ENGINE_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  HARP_KEY_FILE_MIN = 16, /* bytes; a shorter key can be guessed */
  HARP_KEY_FILE_MAX = 4096,
  HARP_KEY_FILE_ERROR_SIZE = 512,
};

struct harp_key_file {
  size_t length; /* bytes, without trailing line ends */
  bool loose;    /* every user of this host may read or change the file */
  uint8_t bytes[HARP_KEY_FILE_MAX + 1];
};

/* 0, or a negative errno and one line in error (HARP_KEY_FILE_ERROR_SIZE bytes). It does not block
 * on a pipe. The caller must erase *file. */
int harp_key_file_read(struct harp_key_file *file, const char *path, char *error);

#endif
