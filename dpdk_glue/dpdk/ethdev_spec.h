/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a device name after "dpdk:": a PCI id or any DPDK devargs, then HARP's options for
 * the device, each after a semicolon: "net_vhost0,iface=/run/v.sock;tso=0;regions=64".
 */
#ifndef HARP_DPDK_GLUE_ETHDEV_SPEC_H
#define HARP_DPDK_GLUE_ETHDEV_SPEC_H

#include <stdbool.h>
#include <stdint.h>

struct ethdev_spec {
  char devargs[320]; /* passed to DPDK */
  char name[64];     /* devargs up to the first comma */
  bool pci;          /* name is a PCI id with domain, in lower case */
  bool physical;     /* the device needs physical addresses */
  bool iommu;        /* the device reaches only memory that is mapped for it */
  char uio[24];      /* the kernel's UIO driver of the device; "": none */
  char socket[108];  /* Unix socket that joins virtio_user and vhost; "": none */
  bool serves;       /* this side creates the socket */

  /* Features to use if the device has them. */
  bool tx_checksum, rx_checksum, tso, lro, rss;
  bool reference;       /* send directly from the application's memory */
  uint32_t descriptors; /* per ring; 0: HARP chooses */
  uint32_t regions;     /* most extents of mapped memory; 0: as many as the device takes */
};

/* 0, or -EINVAL and one line in error (HARP_PORT_ERROR_SIZE bytes). */
int harp_ethdev_spec_parse(struct ethdev_spec *spec, const char *text, char *error);

#endif
