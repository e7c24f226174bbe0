/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel knows about an interface and about addresses.
 */
#ifndef HARP_DPDK_GLUE_NETDEV_H
#define HARP_DPDK_GLUE_NETDEV_H

#include <stdbool.h>
#include <stdint.h>

struct harp_netdev {
  int index;
  bool up;      /* switched on */
  bool carrier; /* and the other side answers */
  uint8_t mac[6];
  uint32_t mtu;
  uint32_t gso_max;    /* a frame of so many bytes or more is cut in software */
  uint32_t speed_mbps; /* 0: unknown */
  uint32_t address;    /* the first IPv4 address, network order; 0: none */
  uint8_t prefix;
  uint32_t gateway;   /* of the default route by this interface; 0: none */
  char pci_path[256]; /* folder of the PCI function in sysfs; "": a virtual device */
};

/* Fills *device. -ENODEV: no such interface; -EOPNOTSUPP: not Ethernet. The
 * line in error (HARP_PORT_ERROR_SIZE bytes) begins with "packet:NAME". */
int harp_netdev_read(const char *name, struct harp_netdev *device, char *error);

/* Whether the kernel holds the address itself (what `ip route get` calls
 * local). address: network order. */
bool harp_netdev_is_local(uint32_t address);

/* Whether the interface is up and has a carrier. false if it is gone. */
bool harp_netdev_has_carrier(int index);
/* 1: up; 0: down; -ENODEV: gone. */
int harp_netdev_state(int index);

#endif
