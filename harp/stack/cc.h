/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: a table of functions over a small private state. Windows
 * are bytes, times are ns; integers only.
 */
#ifndef HARP_STACK_CC_H
#define HARP_STACK_CC_H

#include <stdint.h>

struct harp_tcp;

struct harp_cc_ops {
  const char *name;
  void (*init)(struct harp_tcp *tcp);
  /* acked bytes arrived while the window was in full use and nothing is lost. */
  void (*on_ack)(struct harp_tcp *tcp, uint32_t acked);
  /* A loss: returns the new ssthresh, and remembers. */
  uint32_t (*on_loss)(struct harp_tcp *tcp);
  /* The last on_loss was a mistake. */
  void (*on_undo)(struct harp_tcp *tcp);
};

struct harp_cc {
  const struct harp_cc_ops *ops;
  /* CUBIC (RFC 9438), windows in segments << 10 */
  uint64_t epoch;           /* ns; 0: none */
  uint32_t w_max, w_est, origin;
  uint64_t w_est_rest;      /* what w_est has not yet taken, times the window in bytes */
  uint32_t k_ms;
  uint32_t acked_bytes;     /* not yet turned into window */
  uint32_t prior_w_max;     /* before the last loss, for undo */
};

/* NULL: unknown name. */
const struct harp_cc_ops *harp_cc_find(const char *name);

#endif
