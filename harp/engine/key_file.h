/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that HARP_KEY_FILE names: read whole, and refused where it is no key.
 * What is made of its bytes is the plugin's.
 *
 * Thread: any; no function here keeps state.
 */
#ifndef HARP_ENGINE_KEY_FILE_H
#define HARP_ENGINE_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  HARP_KEY_FILE_MIN = 16, /* bytes; fewer can be guessed */
  HARP_KEY_FILE_MAX = 4096,
  HARP_KEY_FILE_ERROR_SIZE = 512,
};

struct harp_key_file {
  size_t length; /* without line ends at the end */
  bool loose;    /* every user of this host may read or change it; known once the file is open */
  uint8_t bytes[HARP_KEY_FILE_MAX + 1];
};

/* 0, or a negative errno and one line in error (HARP_KEY_FILE_ERROR_SIZE bytes); never waits. The
 * caller erases *file. */
int harp_key_file_read(struct harp_key_file *file, const char *path, char *error);

#endif
