/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ensures that only one process drives a NIC on the PCI bus.
 *
 * VFIO enforces this itself. UIO admits every process, and each one that exits disables the
 * device's memory accesses. So HARP processes exclude each other by a lock on the function's config
 * file in sysfs. The kernel releases the lock when the process exits. The lock must not be on
 * /dev/uioN: a process that opens that file to try the lock and closes it again would stop the
 * device.
 *
 * Network namespaces have separate sysfs mounts, and containers share no file. So HARP also reads
 * the device's bus master bit, which is visible everywhere. The bit is set while a process has the
 * device open. Older kernels may leave it set afterwards (is_driven in ethdev_owner.c).
 */
#ifndef HARP_DPDK_GLUE_ETHDEV_OWNER_H
#define HARP_DPDK_GLUE_ETHDEV_OWNER_H

#include "dpdk_glue/dpdk/ethdev_spec.h"

enum { ETHDEV_OWNER_FILES = 16 };

struct ethdev_owner {
  int lock_fd;                    /* -1: no lock is held */
  int others[ETHDEV_OWNER_FILES]; /* driver files that were open earlier, for other devices */
  unsigned other_count;
  int files[ETHDEV_OWNER_FILES]; /* driver files that DPDK has opened for this device */
  unsigned file_count;
};

/* Initializes an owner that owns no NIC. */
void harp_ethdev_owner_init(struct ethdev_owner *owner);
/* Makes this process the owner of the NIC in spec, which is a PCI function. 0, or -EBUSY and one
 * line in error (HARP_PORT_ERROR_SIZE bytes): another process owns it. */
int harp_ethdev_owner_take(struct ethdev_owner *owner, const struct ethdev_spec *spec, char *error);
/* DPDK has opened the device: sets close-on-exec on the files that it opened. */
void harp_ethdev_owner_attached(struct ethdev_owner *owner);
/* DPDK is about to close the device and its files. */
void harp_ethdev_owner_detaching(struct ethdev_owner *owner);
/* Releases the NIC for other processes, after DPDK has closed the device. */
void harp_ethdev_owner_give(struct ethdev_owner *owner);
/* For a forked child: closes its copies of the files, so that the NIC stays with the parent and
 * becomes free when the parent exits. */
void harp_ethdev_owner_forget(struct ethdev_owner *owner);

#endif
