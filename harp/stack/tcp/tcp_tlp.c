/* SPDX-License-Identifier: Apache-2.0 */
/* The tail loss probe (RFC 8985, 7). */

#include "harp/stack/tcp/tcp_tlp.h"

#include "harp/stack/seq.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp.h"
#include "harp/stack/tcp/tcp_ack_result.h"
#include "harp/stack/tcp/tcp_cwnd.h"
#include "harp/stack/tcp/tcp_output.h"
#include "harp/stack/tcp/tcp_rack.h"
#include "harp/stack/tcp/tcp_sndq.h"
#include "harp/stack/tcp/tcp_timer.h"

/* The end of a TLP episode (RFC 8985, 7.4). An ACK of exactly the probe's end may answer the
 * original segment if the probe was a retransmission; then a DSACK follows. */
void tcp_tlp_on_ack(struct harp_tcp *tcp, const struct harp_ack_result *result)
{
  if (!tcp->tlp.is_retransmission) {
    tcp->tlp.outstanding = seq_lt(tcp->snd.una, tcp->tlp.end);
    return;
  }
  bool beyond = seq_gt(tcp->snd.una, tcp->tlp.end);
  if (!beyond && !(tcp->snd.una == tcp->tlp.end && result->dsack)) {
    return;
  }
  tcp->tlp.outstanding = false;
  if (!result->dsack && tcp->recovery == RECOVERY_NONE && !tcp->tlp.reacted) {
    /* The probe itself repaired a loss. No other event shows that loss. */
    tcp_cwnd_on_repaired_loss(tcp);
  }
}

/* RFC 8985, 7.4.2, case 2: both copies have arrived at a peer that sends no DSACK. */
void tcp_tlp_on_duplicate(struct harp_tcp *tcp)
{
  if (tcp->tlp.is_retransmission && tcp->snd.una == tcp->tlp.end) {
    tcp->tlp.outstanding = false;
  }
}

/* Sends new data, or else retransmits the last segment (RFC 8985, 7.3). The SACK of the last data
 * shows every hole before it. New data is never spurious. */
static void send_probe(struct harp_tcp *tcp)
{
  bool fresh = tcp_send_new_probe(tcp);
  if (tcp->state == TCP_CLOSE) {
    return;
  }
  COUNT(tcp->stack, tcp_tail_probes);
  tcp->tlp.outstanding = true;
  tcp->tlp.is_retransmission = !fresh;
  tcp->tlp.reacted = false;
  tcp->tlp.end = tcp->snd.nxt;
  if (!fresh) {
    struct harp_record *last = tcp->flight.last;
    if (last->end - last->seq > tcp->snd.mss) {
      struct harp_record *right = tcp_record_split(tcp, last, last->end - tcp->snd.mss);
      last = right ? right : last;
    }
    /* Only lost records are retransmitted. So the trace tells of a loss before each such probe. */
    tcp_mark_lost(tcp, last);
    if (!tcp_retransmit(tcp, last, tcp->snd.mss)) {
      tcp_mark_dirty(tcp); /* the next flush sends it */
    }
  }
  tcp_arm_rto(tcp);
}

/* Whether a probe leaves the RTO a way to adapt to a longer round trip. Without timestamps the
 * acknowledgement of a probe is no sample: the probe must neither take the place of the timeout nor
 * delay the end of the backoff. */
static bool rto_can_adapt(const struct harp_tcp *tcp)
{
  return tcp->timestamps || (!tcp->backoff && tcp->timers[TIMER_RTO] > tcp->stack->now);
}

void tcp_tlp_on_timer(struct harp_tcp *tcp)
{
  const struct harp_record *last = tcp->flight.last;
  if (last && last->state == RECORD_IN_FLIGHT && rto_can_adapt(tcp)) {
    send_probe(tcp);
  }
}

void tcp_tlp_cancel(struct harp_tcp *tcp)
{
  tcp->tlp.outstanding = false;
  tcp_timer_stop(tcp, TIMER_TLP);
}
