/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's environment (EAL). A process starts it once, with the first dpdk: device that it opens,
 * and keeps it until it exits.
 *
 * Thread: one call at a time, from harp_eal_thread.
 */
#ifndef HARP_DPDK_GLUE_EAL_H
#define HARP_DPDK_GLUE_EAL_H

#include <stdbool.h>
#include <stdint.h>

struct harp_eal_request {
  const char *device; /* for error lines: the part after "dpdk:" */
  uint32_t hugepages; /* MiB requested by the configuration; 0: use hugepages if enough are free */
  uint32_t need_mib;  /* MiB that the device needs */
  bool physical;      /* the device needs physical addresses (IOVA as PA) */
};

/* Starts EAL, or checks that the running EAL can serve this request. 0, or a negative errno and
 * one line in error (HARP_PORT_ERROR_SIZE bytes). */
int harp_eal_start(const struct harp_eal_request *request, char *error);

/* Describes EAL's memory in one clause. */
const char *harp_eal_memory(void);
/* MiB that EAL maps at least for a device behind an IOMMU. */
uint32_t harp_eal_mib(void);

/* Returns the first error line that DPDK logged since the last forget; "" if there is none. */
const char *harp_eal_complaint(void);
void harp_eal_forget_complaint(void);

/*
 * Runs function on a separate HARP thread and waits for it. EAL pins the thread that starts it to
 * cores, and threads that drivers create inherit its signal mask. Neither may happen to an
 * application thread. 0, or a negative errno if the function did not run.
 */
int harp_eal_thread(void (*function)(void *argument), void *argument);

#endif
