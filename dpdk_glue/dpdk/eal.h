/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's environment (EAL): a process has it once, started by the first dpdk:
 * device that it opens, and keeps it until it ends.
 *
 * Thread: one call at a time, from harp_eal_thread.
 */
#ifndef HARP_DPDK_GLUE_EAL_H
#define HARP_DPDK_GLUE_EAL_H

#include <stdbool.h>
#include <stdint.h>

struct harp_eal_request {
  const char *device; /* for error lines: what follows "dpdk:" */
  uint32_t hugepages; /* MiB that were asked for; 0: those that there are, or none */
  uint32_t need_mib;  /* what the device will take */
  bool physical;      /* the device is to be given physical addresses */
};

/* Starts it, or finds that it serves this wish too. 0, or a negative errno and
 * one line in error (HARP_PORT_ERROR_SIZE bytes). */
int harp_eal_start(const struct harp_eal_request *request, char *error);

/* One clause: what kind of memory it has. */
const char *harp_eal_memory(void);
bool harp_eal_has_hugepages(void);
/* What it will want to map for a device behind an IOMMU, at least. */
uint32_t harp_eal_mib(void);

/* What DPDK has said went wrong since the last forget; "" for nothing. */
const char *harp_eal_complaint(void);
void harp_eal_forget_complaint(void);

/*
 * Runs function on a thread of HARP's own and waits for it. EAL binds the
 * thread that starts it to cores, and threads that drivers create take over its
 * signal mask: neither may be the application's. 0, or a negative errno: it has
 * not run.
 */
int harp_eal_thread(void (*function)(void *argument), void *argument);

#endif
