/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader and a writer for each kind of value in ztcp*.conf.
 *
 * A reader gets a trimmed, non-empty, NUL-terminated text without control characters except tabs,
 * and the key's field. It returns false if the text is not allowed; the field is undefined then. A
 * writer formats the field as a file would contain it, "" if it is not set.
 */
#ifndef HARP_ENGINE_CONFIG_VALUES_H
#define HARP_ENGINE_CONFIG_VALUES_H

#include "harp/engine/config.h"

/* The scopes of config_keys.def: whether a key may be set in the environment, too. */
enum { ANYWHERE = false, FILE_ONLY = true };

struct harp_config_kind {
  bool (*read)(const struct harp_config_key_info *key, const char *text, void *field);
  void (*write)(const void *field, char *out, size_t size);
};

extern const struct harp_config_kind harp_config_DEVICE, harp_config_ADDRESS, harp_config_GATEWAY,
    harp_config_UINT16, harp_config_UINT32, harp_config_MAC, harp_config_GPU, harp_config_PATH,
    harp_config_CORES, harp_config_PORTS, harp_config_PEERS, harp_config_CHOICE;

/* "3B:00.0", "00000000:3b:00.0" -> "0000:3b:00.0". */
bool harp_pci_id_parse(const char *text, char out[HARP_PCI_ID_SIZE]);

#endif
