/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The distance between a NIC and a GPU on the PCI buses, and the NIC's speed, both from sysfs.
 *
 * Thread: any; reads /sys only, and keeps no state.
 */
#ifndef HARP_ENGINE_NEARNESS_H
#define HARP_ENGINE_NEARNESS_H

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

/* The NIC's speed, Mbit/s; 0: unknown. It comes from sysfs only, so that every process gets the
 * same value, even if it has not opened the NIC. root: as above. */
uint32_t harp_nic_speed(const struct harp_config *config, const char *root);

#endif
