/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands behind "dpdk:": a PCI id or any DPDK devargs, then, each behind a
 * semicolon, what HARP is to make of the device:
 * "net_vhost0,iface=/run/v.sock;tso=0;regions=64".
 */
#ifndef HARP_DPDK_GLUE_ETHDEV_SPEC_H
#define HARP_DPDK_GLUE_ETHDEV_SPEC_H

#include <stdbool.h>
#include <stdint.h>

struct ethdev_spec {
  char devargs[320]; /* for DPDK */
  char name[64];     /* the device's: devargs up to the first comma */
  bool pci;          /* name is a PCI id with its domain, lower case */
  bool physical;     /* it must be given physical addresses */
  bool iommu;        /* it reaches only what is mapped for it */
  char uio[24];      /* the kernel's driver that lets processes in without VFIO; "": none */
  char socket[108];  /* by which virtio_user and vhost meet; "": none */
  bool serves;       /* this side makes it */

  /* What is used where the device has it. */
  bool tx_checksum, rx_checksum, tso, lro, rss;
  bool reference;       /* send from the application's memory */
  uint32_t descriptors; /* of each ring */
  uint32_t regions;     /* extents of that memory, at most; 0: as many as the device takes */
};

/* 0, or -EINVAL and one line in error (HARP_PORT_ERROR_SIZE bytes). */
int harp_ethdev_spec_parse(struct ethdev_spec *spec, const char *text, char *error);

#endif
