/* SPDX-License-Identifier: Apache-2.0 */
#include "harp/stack/tcp/tcp_shared_ack.h"

#include "harp/stack/bytes.h"
#include "harp/stack/flow.h"
#include "harp/stack/stack_state.h"
#include "harp/stack/tcp/tcp_times.h"

/* Whether a quarter of the window stays free, and a full segment, because tcp_output.c sends no
 * part of one. */
static bool leaves_room(const struct harp_tcp *tcp, uint32_t outstanding, uint32_t window)
{
  return outstanding + HARP_MAX(window / 4, tcp->snd.mss) <= window;
}

/* Whether both windows have room for these bytes and for later ones. The owner keeps a quarter of
 * cwnd free for shared ACKs, so cwnd never looks used up and would not grow. cwnd_used makes it
 * count as the limit until these bytes are acknowledged (RFC 7661, 4.3). */
static bool window_has_room(struct harp_tcp *tcp, uint32_t bytes)
{
  uint32_t outstanding = tcp->snd.end + bytes - tcp->snd.una;
  bool fits = leaves_room(tcp, outstanding, tcp->cwnd);
  if (!fits) {
    tcp->cwnd_used = true;
    tcp->shared_ack.begin = tcp->shared_ack.end = tcp->snd.end + bytes;
  }
  return fits && leaves_room(tcp, outstanding, tcp->snd.wnd);
}

bool harp_flow_try_share_ack(struct harp_tcp *tcp, uint32_t bytes)
{
  struct tcp_shared_ack *shared = &tcp->shared_ack;
  uint32_t now_ms = (uint32_t)(tcp->stack->now / NS_PER_MS);
  bool fresh = now_ms - shared->sampled_ms < SHARED_ACK_SAMPLES_MS;
  bool early = tcp->rtt.rto_min < SHARED_ACK_RTO_MIN; /* the RTO may expire before the ACK */
  if (!tcp->harp_peer || !window_has_room(tcp, bytes) || !fresh || early) {
    return false;
  }
  if (shared->end != tcp->snd.end) {
    shared->begin = tcp->snd.end;
  }
  shared->end = tcp->snd.end + bytes;
  return true;
}
