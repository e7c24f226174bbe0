/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that a process reports to NCCL: one for each NIC of the host.
 *
 * NCCL requires that all ranks of a host report the same devices in the same order. Otherwise
 * initialization fails or hangs (NCCL up to 2.21), or a NIC appears twice. So the devices are a
 * function of the configuration folder and of sysfs only. They do not depend on what this process
 * has claimed or opened.
 *
 * Thread: any; no function here keeps state.
 */
#ifndef HARP_ENGINE_DEVICES_H
#define HARP_ENGINE_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/engine/conf_folder.h"

enum {
  HARP_DEVICES_MAX = 128,          /* NCCL's limit */
  HARP_SPEED_UNKNOWN_MBPS = 25000, /* assumed for a NIC of unknown speed */
};

struct harp_device {
  char identity[HARP_CONFIG_DEVICE_SIZE]; /* as harp_nic_identity writes it */
  char pci_path[HARP_CONFIG_PATH_SIZE];   /* for NCCL; "": none */
  uint64_t guid;                          /* differs between the devices of a host */
  uint32_t speed_mbps;
  bool speed_known; /* false: it is assumed */
};

struct harp_devices {
  unsigned count;
  bool one; /* HARP_DEVICES=1: a single device stands for all NICs */
  struct harp_device of[HARP_DEVICES_MAX];
  uint8_t device_of[HARP_CONF_FILES_MAX]; /* by file: the index of its NIC's device */
};

/*
 * Finds the devices of a folder. The order is that of the first file of each NIC. A NIC's first
 * file also gives the keys pci_path and speed_mbps. root: "", or in tests a folder that contains
 * /sys. 0, or -EINVAL and one line in error (HARP_CONFIG_ERROR_SIZE bytes): HARP_DEVICES has a
 * wrong value, or the folder has too many NICs.
 */
int harp_devices_find(struct harp_devices *devices, const struct harp_conf_folder *folder,
                      const char *root, char *error);

#endif
