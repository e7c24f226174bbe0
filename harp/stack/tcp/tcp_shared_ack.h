/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared acknowledgements between HARP hosts: the sender's side. The sender tells which bytes may
 * be acknowledged late, by a flag of the protocol above TCP. The receiver (tcp_ack_sched.c)
 * acknowledges these bytes together with later ones. harp/stack/flow.h has both calls.
 */
#ifndef HARP_STACK_TCP_SHARED_ACK_H
#define HARP_STACK_TCP_SHARED_ACK_H

#include <stdbool.h>
#include <stdint.h>

#include "harp/stack/seq.h"
#include "harp/stack/tcp/tcp.h"

/* Whether an acknowledgement up to ack may be late, so its time tells no round trip. */
static inline bool tcp_shared_ack_ends(const struct harp_tcp *tcp, uint32_t ack)
{
  const struct tcp_shared_ack *shared = &tcp->shared_ack;
  return seq_gt(ack, shared->begin) && seq_le(ack, shared->end);
}

#endif
