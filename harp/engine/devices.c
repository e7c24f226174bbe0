/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/engine/devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp/engine/nic_sysfs.h"
#include "harp/fnv1a.h"

#define ONE_GUID 0x50524148 /* of the only device under HARP_DEVICES=1; equal on every rank */

static uint64_t hash(const char *text) { return fnv1a_64(FNV1A_64_BEGIN, text, strlen(text)); }

static bool has_guid(const struct harp_devices *devices, uint64_t guid)
{
  for (unsigned i = 0; i < devices->count; i++) {
    if (devices->of[i].guid == guid) {
      return true;
    }
  }
  return false;
}

static void describe(struct harp_devices *devices, const struct harp_config *config,
                     const char *identity, const char *root)
{
  struct harp_device *device = &devices->of[devices->count];

  snprintf(device->identity, sizeof(device->identity), "%s", identity);
  if (config->pci_path[0]) {
    snprintf(device->pci_path, sizeof(device->pci_path), "%s", config->pci_path);
  } else {
    harp_nic_function(config, root, device->pci_path, sizeof(device->pci_path));
  }
  uint32_t speed = config->speed_mbps ? config->speed_mbps : harp_nic_speed(config, root);
  device->speed_known = speed > 0;
  device->speed_mbps = speed ? speed : HARP_SPEED_UNKNOWN_MBPS;
  device->guid = hash(identity);
  while (has_guid(devices, device->guid)) {
    device->guid++;
  }
  devices->count++;
}

/* All NICs as one device. Its speed is that of the slowest NIC: any NIC may serve it. */
static void join_all(struct harp_devices *devices)
{
  struct harp_device *one = &devices->of[0];

  for (unsigned i = 1; i < devices->count; i++) {
    one->speed_known = one->speed_known && devices->of[i].speed_known;
    if (devices->of[i].speed_mbps < one->speed_mbps) {
      one->speed_mbps = devices->of[i].speed_mbps;
    }
  }
  one->pci_path[0] = '\0';
  one->guid = ONE_GUID;
  devices->count = 1;
  devices->one = true;
  memset(devices->device_of, 0, sizeof(devices->device_of));
}

/* The index of the device with this identity; devices->count: it is new. */
static unsigned find(const struct harp_devices *devices, const char *identity)
{
  unsigned i = 0;

  while (i < devices->count && strcmp(devices->of[i].identity, identity) != 0) {
    i++;
  }
  return i;
}

int harp_devices_find(struct harp_devices *devices, const struct harp_conf_folder *folder,
                      const char *root, char *error)
{
  const char *limit = getenv("HARP_DEVICES");
  bool limited = limit && *limit;

  memset(devices, 0, sizeof(*devices));
  if (limited && strcmp(limit, "1") != 0) {
    snprintf(error, HARP_CONFIG_ERROR_SIZE,
             "HARP_DEVICES=%.32s: the only value is 1, one device for all NICs; unset it for a "
             "device for each NIC",
             limit);
    return -EINVAL;
  }
  for (int i = 0; i < folder->count; i++) {
    const struct harp_config *config = &folder->files[i].config;
    char identity[HARP_CONFIG_DEVICE_SIZE];

    harp_nic_identity(config, root, identity, sizeof(identity));
    unsigned device = find(devices, identity);
    if (device == HARP_DEVICES_MAX) {
      snprintf(error, HARP_CONFIG_ERROR_SIZE,
               "%.200s has files for more than %d NICs, NCCL's limit; remove some", folder->path,
               HARP_DEVICES_MAX);
      return -EINVAL;
    }
    devices->device_of[i] = (uint8_t)device;
    if (device == devices->count) {
      describe(devices, config, identity, root);
    }
  }
  if (limited) {
    join_all(devices);
  }
  return 0;
}
