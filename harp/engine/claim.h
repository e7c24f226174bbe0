/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process claims ztcp*.conf, and with them NICs, by file locks (flock) that end with the process.
 * A lock is exclusive, or shared if processes can share the device.
 *
 * Every process claims one file for its home NIC. It prefers the NIC assigned to its GPU by the key
 * `gpu`, then the nearest one with `gpu = any`, then the one of its local rank, then the order of
 * the files. It also claims the other NICs that it may drive:
 *   - all shareable ones;
 *   - its share of the exclusive ones, if the host has fewer local ranks than exclusive files. A
 *     process never takes more than its share, since another rank may start later.
 *
 * An invalid file makes every rank of the host decline. Too few files for the local ranks do the
 * same. A job in which some ranks used HARP and others sockets would hang or be slow.
 *
 * Thread: any, one at a time per claim.
 */
#ifndef HARP_ENGINE_CLAIM_H
#define HARP_ENGINE_CLAIM_H

#include "harp/engine/config.h"
#include "harp/engine/devices.h"

enum {
  HARP_CLAIM_ERROR_SIZE = HARP_CONFIG_ERROR_SIZE,
};

struct harp_claim {
  int fd;          /* the locked file; -1: nothing is claimed */
  bool shared;     /* other processes may claim the same file, too */
  unsigned device; /* the index of the file's NIC among the host's devices */
  struct harp_config config;
};

/* All that a process claims. */
struct harp_claims {
  struct harp_devices devices; /* of the host */
  unsigned count;
  struct harp_claim *of; /* at most one per device; of[0] is the home NIC's */
};

/*
 * Claims the home NIC's file and reads it. 0, or a negative errno and one line in error
 * (HARP_CLAIM_ERROR_SIZE bytes):
 * -ECANCELED  HARP_DISABLE=1
 * -ENOENT     no folder, or no ztcp*.conf in it
 * -EINVAL     a file or HARP_DEVICES is invalid
 * -EUSERS     fewer files than local ranks
 * -EBUSY      other processes have claimed all files
 */
int harp_claim(struct harp_claim *claim, char *error);

/* Claims the files of all NICs that this process may drive. Errors: as above; *claims is then empty
 * and need not be released. */
int harp_claims_take(struct harp_claims *claims, char *error);

/* The same for tests. root: a folder that contains /proc/driver and /sys. */
int harp_claims_take_below(struct harp_claims *claims, const char *root, char *error);

/* Releases the claimed file. */
void harp_claim_release(struct harp_claim *claim);
void harp_claims_release(struct harp_claims *claims);

/* In a forked child: closes the child's copy of the descriptor. The parent's claim stays. */
void harp_claim_forget(struct harp_claim *claim);

#endif
