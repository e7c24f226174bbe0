/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: a table of functions over a small private state. Windows
 * are bytes, times are ns; integers only.
 */
#ifndef HARP_STACK_CC_H
#define HARP_STACK_CC_H

#include <stdbool.h>
#include <stdint.h>

struct harp_tcp;

struct harp_cc_ops {
  const char *name;
  void (*init)(struct harp_tcp *tcp); /* makes it the connection's, as at its start */
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
  uint64_t epoch; /* ns; 0: none */
  uint32_t w_max, w_est, origin;
  uint64_t w_est_rest; /* what w_est has not yet taken, times the window in bytes */
  uint32_t k_ms;
  uint32_t acked_bytes; /* not yet turned into window */
  uint32_t prior_w_max; /* before the last loss, for undo */
};

/* The first slow start (cc_hystart.c); round trips are ns. */
struct harp_hystart {
  uint64_t round_min, last_min; /* the least round trip of this round and of the last */
  uint64_t baseline;            /* round_min when it had grown */
  uint64_t late_since;          /* ns: when round trips began to be longer by half */
  uint32_t round_end;           /* snd_nxt when the round began */
  uint8_t samples, late;        /* of this round and of those, as far as they matter */
  uint8_t rounds;               /* of growth at a quarter of the speed; 0: at full speed */
  bool begun;
};

/* What acked bytes add to the window before the first loss; rtt: ns, 0 if none was measured. May
 * set ssthresh. */
uint32_t hystart_growth(struct harp_tcp *tcp, uint32_t acked, uint64_t rtt);

extern const struct harp_cc_ops harp_cc_cubic, harp_cc_reno;

/* NULL: unknown name. */
const struct harp_cc_ops *harp_cc_find(const char *name);

#endif
