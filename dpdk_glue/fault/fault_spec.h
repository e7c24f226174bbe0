/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fault port does to the frames that pass: "drop=0.01,seed=7".
 */
#ifndef HARP_DPDK_GLUE_FAULT_SPEC_H
#define HARP_DPDK_GLUE_FAULT_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_side {
  FAULT_TX = 1,
  FAULT_RX = 2,
};

/* Probabilities are of 2^32, so that a draw is one comparison. */
struct fault_spec {
  uint64_t drop, duplicate, reorder, corrupt;
  uint64_t drop_burst; /* frames lost each time that drop strikes */
  uint64_t reorder_by; /* later frames that overtake a reordered one */
  uint64_t delay_us;
  uint64_t rate_mbps; /* 0: unlimited */
  uint64_t blackhole; /* boolean: nothing passes */
  uint64_t seed;
  uint64_t side;     /* enum fault_side, both or'ed */
  uint64_t tcp_port; /* with it, only TCP frames from or to this port; 0: all frames */
  uint64_t flow;     /* 1 + index of a local port in the order they were taken; 0: all */
  uint64_t tso;      /* boolean: let large segments pass whole */
  uint64_t hold_us;  /* references to sent memory are kept so long; see fault_hold.h */
  char control[256]; /* file with a spec that is laid over this one; "": none */
};

void harp_fault_spec_default(struct fault_spec *spec);

/*
 * Changes spec by a list "key=value,..." of length bytes; white space around
 * items is skipped. running: the text is that of a control file, which may not
 * name what only open can settle (seed, tso, hold_us, control). On -EINVAL spec is as
 * it was and error (HARP_PORT_ERROR_SIZE bytes) names the key and what is
 * allowed.
 */
int harp_fault_spec_parse(struct fault_spec *spec, const char *text, size_t length, bool running,
                          char *error);

#endif
