/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process claims one ztcp*.conf, and with it a NIC, by a file lock (flock) that ends with the
 * process. The lock is exclusive, or shared if processes can share the device. The process prefers
 * the NIC assigned to its GPU by the key `gpu`, then the nearest one with `gpu = any`, then the one
 * of its local rank, then the order of the files (ztcp2 before ztcp10).
 *
 * An invalid file makes every rank of the host decline. So do more ranks than NICs. A job in which
 * some ranks used HARP and others sockets would hang or be slow.
 *
 * Thread: any, one at a time per claim.
 */
#ifndef HARP_ENGINE_CLAIM_H
#define HARP_ENGINE_CLAIM_H

#include "harp/engine/config.h"

enum {
  HARP_CLAIM_ERROR_SIZE = 512,
  HARP_SPEED_UNKNOWN_MBPS = 25000, /* assumed for a NIC of unknown speed */
};

#define HARP_CONF_DIR_DEFAULT "/usr/local/tfabric/tools/config"

struct harp_claim {
  int fd;      /* the locked file; -1: nothing is claimed */
  bool shared; /* other processes may claim the same file, too */
  struct harp_config config;
  uint32_t slowest_mbps; /* speed of the slowest NIC of all files in the folder */
};

/*
 * Claims a file and reads it. 0, or a negative errno and one line in error (HARP_CLAIM_ERROR_SIZE
 * bytes):
 * -ECANCELED  HARP_DISABLE=1
 * -ENOENT     no folder, or no ztcp*.conf in it
 * -EINVAL     a file is invalid
 * -EUSERS     fewer files than local ranks
 * -EBUSY      other processes have claimed all files
 */
int harp_claim(struct harp_claim *claim, char *error);

/* The same for tests. root: a folder that contains /proc/driver and /sys. */
int harp_claim_below(struct harp_claim *claim, const char *root, char *error);

/* Releases the claimed file. */
void harp_claim_release(struct harp_claim *claim);

/* In a forked child: closes the child's copy of the descriptor. The parent's claim stays. */
void harp_claim_forget(struct harp_claim *claim);

#endif
