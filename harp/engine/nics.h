/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NICs of a process: an engine for each one that it may drive.
 *
 * The home NIC's engine starts at once. The engines of the other shareable NICs are only opened,
 * because the process may drop its privileges later. They start at first use, so an unused NIC
 * costs no thread and no packet memory. An exclusive NIC's engine starts at once, too: its address
 * may have to be probed.
 *
 * Thread: the caller serializes open, close and forget.
 */
#ifndef HARP_ENGINE_NICS_H
#define HARP_ENGINE_NICS_H

#include "harp/engine/claim.h"
#include "harp/engine/engine.h"

struct harp_nics {
  struct harp_claims claims;
  unsigned home;     /* a device's index */
  bool one_instance; /* of a NIC by default, because several could not start on one of them */
  struct harp_engine *engines[HARP_DEVICES_MAX]; /* by device; NULL: not driven by this process */
};

/*
 * Claims the NICs of this process and opens them. Everything that can fail is done here, so that
 * NCCL can still fall back. May block. A NIC other than the home one that cannot be opened is left
 * out, with a line in the log. 0, or a negative errno and one line in error
 * (HARP_ENGINE_ERROR_SIZE bytes), which says what is wrong, where, and how to fix it.
 */
int harp_nics_open(struct harp_nics *nics, char *error);
/* Stops all workers and frees everything. No thread may use the engines, their instances or
 * flows. */
void harp_nics_close(struct harp_nics *nics);
/* In a forked child: releases the child's copies of descriptors and mappings. */
void harp_nics_forget(struct harp_nics *nics);

#endif
