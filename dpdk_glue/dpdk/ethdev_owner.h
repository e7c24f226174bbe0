/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process drives a NIC on the PCI bus: one at a time.
 *
 * VFIO sees to that itself. UIO lets in whoever comes, and each who goes stops
 * the device's memory accesses. So HARP's processes exclude each other there by
 * a lock on the function's file in sysfs, which goes with its process. It must
 * not be /dev/uioN's: whoever opened that to try the lock, and went again, would
 * have stopped the device. sysfs is another one in each network namespace, and
 * no file is the same in every container; what is seen everywhere is the device
 * itself, which may access memory only while somebody has it open.
 */
#ifndef HARP_DPDK_GLUE_ETHDEV_OWNER_H
#define HARP_DPDK_GLUE_ETHDEV_OWNER_H

#include "dpdk_glue/dpdk/ethdev_spec.h"

enum { ETHDEV_OWNER_FILES = 16 };

struct ethdev_owner {
  int lock_fd;                    /* -1: there is no lock */
  int others[ETHDEV_OWNER_FILES]; /* driver's files that were open before, of whomever */
  unsigned other_count;
  int files[ETHDEV_OWNER_FILES]; /* those that DPDK has opened for the device since */
  unsigned file_count;
};

/* Nobody's yet. */
void harp_ethdev_owner_init(struct ethdev_owner *owner);
/* The NIC of spec, which is a PCI function, becomes this process's. 0, or -EBUSY
 * and one line in error (HARP_PORT_ERROR_SIZE bytes): it is another's. */
int harp_ethdev_owner_take(struct ethdev_owner *owner, const struct ethdev_spec *spec, char *error);
/* DPDK has opened the device: what it opened is not for programs that this
 * process starts. */
void harp_ethdev_owner_attached(struct ethdev_owner *owner);
/* DPDK is about to close it. */
void harp_ethdev_owner_detaching(struct ethdev_owner *owner);
/* The NIC is anybody's again; DPDK has let go of it. */
void harp_ethdev_owner_give(struct ethdev_owner *owner);
/* In a forked child: the NIC is the parent's alone, and dies with it. Closes
 * files and does nothing else. */
void harp_ethdev_owner_forget(struct ethdev_owner *owner);

#endif
