/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The faults that a fault port applies to passing frames: "drop=0.01,seed=7".
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

/* Probabilities are in units of 2^-32, so that a draw is one comparison. */
struct fault_spec {
  uint64_t drop, duplicate, reorder, corrupt;
  uint64_t drop_burst; /* frames lost with each drop */
  uint64_t reorder_by; /* later frames that overtake a reordered one */
  uint64_t delay_us;
  uint64_t rate_mbps; /* 0: unlimited */
  uint64_t blackhole; /* boolean: no frame passes */
  uint64_t seed;
  uint64_t side;     /* enum fault_side, or'ed */
  uint64_t tcp_port; /* apply only to TCP frames from or to this port; 0: to all frames */
  uint64_t flow;     /* 1 + index of a local port in the order of reservation; 0: all */
  uint64_t tso;      /* boolean: let large segments pass as one frame */
  uint64_t hold_us;  /* keep references to sent memory this long; see fault_hold.h */
  char control[256]; /* path of a control file that overrides this spec; "": none */
};

void harp_fault_spec_default(struct fault_spec *spec);

/*
 * Changes spec by a list "key=value,..." of length bytes; white space around items is skipped.
 * running: the text comes from a control file, which may not set what only open can apply (seed,
 * tso, hold_us, control). On -EINVAL spec is unchanged, and error (HARP_PORT_ERROR_SIZE bytes)
 * names the key and the allowed values.
 */
int harp_fault_spec_parse(struct fault_spec *spec, const char *text, size_t length, bool running,
                          char *error);

#endif
