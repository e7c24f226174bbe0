/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sysfs tells about a configuration's NIC: its PCI function, its distance to a GPU on the PCI
 * buses, and its speed. Every process of a host gets the same answers, even about a NIC that it has
 * not opened.
 *
 * Thread: any; reads /sys only, and keeps no state.
 */
#ifndef HARP_ENGINE_NIC_SYSFS_H
#define HARP_ENGINE_NIC_SYSFS_H

#include "harp/engine/config.h"

enum {
  HARP_NEAR_NODE = 100,    /* different host bridges of one NUMA node */
  HARP_NEAR_SYSTEM = 200,  /* different NUMA nodes */
  HARP_NEAR_UNKNOWN = 300, /* a virtual NIC, or unknown to sysfs */
};

/*
 * The number of PCI steps between the GPU (PCI id; "": unknown) and the configuration's NIC, or a
 * constant above; a smaller value is nearer. root: "", or in tests a folder that contains /sys.
 */
unsigned harp_nic_distance(const struct harp_config *config, const char *gpu, const char *root);

/* The NIC's speed, Mbit/s; 0: unknown. root: as above. */
uint32_t harp_nic_speed(const struct harp_config *config, const char *root);

/* Writes the resolved path of the NIC's PCI function, below root; "": it has none, sysfs does not
 * show it, or its path is too long. The key pci_path does not matter here. */
void harp_nic_function(const struct harp_config *config, const char *root, char *out, size_t size);

/*
 * Writes an identity that no other NIC of the host has: the PCI function ("0000:3b:00.0", and
 * "0000:3b:00.0/1" for its second port), else the interface ("eth1"), else the key `device` itself.
 * Two files of one NIC get the same identity.
 */
void harp_nic_identity(const struct harp_config *config, const char *root, char *out, size_t size);

#endif
