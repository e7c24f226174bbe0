/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening TCP sockets that hold local ports and never answer: the kernel gives the ports to
 * nobody else, and does not reset the segments of HARP's peers.
 */
#ifndef HARP_DPDK_GLUE_SILENT_LISTENERS_H
#define HARP_DPDK_GLUE_SILENT_LISTENERS_H

#include <stdint.h>

#include "dpdk_glue/kernel/kernel_ports.h"

struct silent_block {
  uint16_t first; /* 0: a port that the kernel grants, whose number replaces the 0 */
  uint16_t limit; /* the last port that may be held */
  unsigned count; /* most ports */
  /* The ports after the first one are ports that the kernel could assign; NULL: any. */
  const struct harp_kernel_ports *offered;
};

/* Holds consecutive ports of an address (network order) from block->first on, up to the first one
 * that is in use. Stores a descriptor for each in fds, which the caller closes. Returns their
 * number, at least 1, or a negative errno. -EADDRINUSE: the first port is in use. */
int harp_silent_listeners_open(uint32_t address, struct silent_block *block, int *fds);

#endif
