/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process takes one ztcp*.conf, and with it a NIC, by a file lock that dies
 * with the process: exclusive, or shared where the device can be shared. It
 * prefers the NIC that serves its GPU by the key `gpu`, then those whose key is
 * `any` by their nearness to the GPU, then the one of its local rank, then the
 * files' order (ztcp2 before ztcp10).
 *
 * A wrong file makes every rank decline, and so do more ranks than NICs: a job
 * that ran half over HARP and half over sockets would hang or crawl.
 *
 * Thread: any, one at a time per claim.
 */
#ifndef HARP_ENGINE_CLAIM_H
#define HARP_ENGINE_CLAIM_H

#include "harp/engine/config.h"

enum {
  HARP_CLAIM_ERROR_SIZE = 512,
  HARP_SPEED_UNKNOWN_MBPS = 25000, /* what a NIC counts for whose speed nobody tells */
};

#define HARP_CONF_DIR_DEFAULT "/usr/local/tfabric/tools/config"

struct harp_claim {
  int fd;      /* the locked file; -1: nothing is claimed */
  bool shared; /* other processes may claim the same file */
  struct harp_config config;
  uint32_t slowest_mbps; /* the slowest NIC of the folder, whichever is claimed */
};

/*
 * 0, or a negative errno and one line in error (HARP_CLAIM_ERROR_SIZE bytes):
 * -ECANCELED  HARP_DISABLE=1
 * -ENOENT     no folder, or no ztcp*.conf in it
 * -EINVAL     a file is wrong
 * -EUSERS     fewer files than local ranks
 * -EBUSY      other processes hold all files
 */
int harp_claim(struct harp_claim *claim, char *error);

/* The same for tests: root is a folder below which /proc/driver and /sys are looked for. */
int harp_claim_below(struct harp_claim *claim, const char *root, char *error);

/* Gives the file back. */
void harp_claim_release(struct harp_claim *claim);

/* In a forked child: drops the child's copy of the descriptor and leaves the
 * parent's claim alone. */
void harp_claim_forget(struct harp_claim *claim);

#endif
