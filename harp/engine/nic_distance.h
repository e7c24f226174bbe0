/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How near a NIC is to a GPU, as sysfs shows their places on the PCI buses, and how
 * fast it is.
 *
 * Thread: any; reads /sys only, and keeps no state.
 */
#ifndef HARP_ENGINE_NEARNESS_H
#define HARP_ENGINE_NEARNESS_H

#include "harp/engine/config.h"

enum {
  HARP_NEAR_NODE = 100,    /* another host bridge, the same NUMA node */
  HARP_NEAR_SYSTEM = 200,  /* another NUMA node */
  HARP_NEAR_UNKNOWN = 300, /* a virtual NIC, or sysfs does not tell */
};

/*
 * The bridges and ports between the GPU (PCI id; "": unknown) and the NIC of this
 * configuration, or one of the above; less is nearer. root: "", or in tests the
 * folder below which /sys is looked for.
 */
unsigned harp_nic_distance(const struct harp_config *config, const char *gpu, const char *root);

/* The NIC's speed in Mbit/s by sysfs alone, so that every process is told the same, whether
 * it has opened the NIC or not. 0: unknown. root: as above. */
uint32_t harp_nic_speed(const struct harp_config *config, const char *root);

#endif
