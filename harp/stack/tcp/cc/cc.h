/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control: a table of functions over a small private state. They compute the changes of
 * cwnd and ssthresh, and tcp_cwnd.c makes them. Windows are bytes, times are ns; integers only.
 */
#ifndef HARP_STACK_CC_H
#define HARP_STACK_CC_H

#include <stdbool.h>
#include <stdint.h>

struct harp_tcp;

struct harp_cc_ops {
  const char *name;
  void (*init)(struct harp_tcp *tcp); /* selects this algorithm and resets its state */
  /* Congestion avoidance: `acked` bytes were acknowledged while cwnd >= ssthresh. Also called after
   * a timeout, when data may still be marked lost and cwnd need not be the limit. Never called in
   * fast recovery. Returns the growth of cwnd, bytes. */
  uint32_t (*on_ack)(struct harp_tcp *tcp, uint32_t acked);
  /* A loss: returns the new ssthresh, and saves the state for on_undo. */
  uint32_t (*on_loss)(struct harp_tcp *tcp);
  /* The last on_loss was spurious: restores the state. */
  void (*on_undo)(struct harp_tcp *tcp);
};

struct harp_cc {
  const struct harp_cc_ops *ops;
  /* CUBIC (RFC 9438), windows in segments << 10 */
  uint64_t epoch;      /* ns: its begin, later by the times when cwnd was not the limit; 0: none */
  uint64_t last_ack;   /* ns: the last call of on_ack */
  uint64_t w_est_rest; /* remainder of the division by cwnd in w_est's growth */
  uint32_t w_max, w_est, origin;
  uint32_t k_ms;
  uint32_t acked_bytes; /* not yet added to cwnd */
  uint32_t prior_w_max; /* w_max before the last loss, for on_undo */
};

/* The first slow start (HyStart++, cc_hystart.c). Round-trip times in ns. */
struct harp_hystart {
  uint64_t round_min, last_min; /* shortest round-trip time of this round and of the last */
  uint64_t baseline;            /* round_min when its growth was detected */
  uint64_t late_since; /* ns: when round-trip times began to exceed the limit of a standing queue */
  uint32_t round_end;  /* SND.NXT when the round began */
  uint8_t samples, late; /* samples of this round, late ones in a row */
  uint8_t rounds;        /* rounds of conservative slow start; 0: slow start */
  bool begun;
};

/* An acknowledgement arrived in the first slow start. rtt: ns; 0: no sample. false: slow start must
 * end. */
bool hystart_on_ack(struct harp_tcp *tcp, uint64_t rtt);
/* Returns the growth of cwnd, bytes, for acked bytes in the first slow start. */
uint32_t hystart_growth(const struct harp_hystart *hystart, uint32_t acked);

extern const struct harp_cc_ops harp_cc_cubic, harp_cc_reno;

/* name: NULL: the default. Returns NULL for an unknown name. */
const struct harp_cc_ops *harp_cc_find(const char *name);

#endif
