/* SPDX-License-Identifier: Apache-2.0 */
/* The tail loss probe (RFC 8985, 7). */

/* The end of a tail loss probe's episode (RFC 8985, 7.4). Of a copy an acknowledgement
 * of exactly its end may be of the original, and a DSACK will tell. */
#include "harp/stack/tcp/tcp_tlp.h"

#include "harp/stack/bytes.h"
#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_output.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"

void tcp_tlp_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->probe_is_copy) {
    tcp->probe_outstanding = seq_lt(tcp->snd_una, tcp->probe_end);
    return;
  }
  bool beyond = seq_gt(tcp->snd_una, tcp->probe_end);
  if (!beyond && !(tcp->snd_una == tcp->probe_end && result->dsack)) {
    return;
  }
  tcp->probe_outstanding = false;
  if (!result->dsack && tcp->recovery == RECOVERY_NONE) {
    /* The probe itself repaired a loss, which nothing else will notice. */
    tcp->ssthresh = tcp->cc.ops->on_loss(tcp);
    tcp->cwnd = HARP_MIN(tcp->cwnd, tcp->ssthresh);
  }
}

/* The SACK of what comes last reveals every hole before it: new data, which nobody can have sent
 * in vain, or else the last segment again (RFC 8985, 7.3). */
void tcp_tlp_send(struct harp_tcp *tcp)
{
  bool fresh = tcp_send_new_probe(tcp);
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  COUNT(tcp->stack, tcp_tail_probes);
  tcp->probe_outstanding = true;
  tcp->probe_is_copy = !fresh;
  tcp->probe_end = tcp->snd_nxt;
  if (!fresh) {
    struct harp_record *last = tcp->records_last;
    if (last->end - last->seq > tcp->mss) {
      struct harp_record *right = tcp_record_split(tcp, last, last->end - tcp->mss);
      last = right ? right : last;
    }
    tcp_mark_lost(tcp, last);
    tcp_retransmit(tcp, last, tcp->mss);
  }
  tcp_arm_rto(tcp);
}
