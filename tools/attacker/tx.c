/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "tools/attacker/attacker.h"
#include "tools/attacker/forwarder.h"

enum { BATCH = 64, HEARD = 256 /* frames per call */ };

static int send_on_interface(struct flood *flood, const struct iovec *frames, unsigned count)
{
  struct mmsghdr messages[BATCH];
  memset(messages, 0, sizeof messages);
  for (unsigned i = 0; i < count && i < BATCH; i++) {
    messages[i].msg_hdr.msg_iov = (struct iovec *)(uintptr_t)&frames[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  int sent = sendmmsg(flood->fd, messages, count < BATCH ? count : BATCH, 0);
  return sent < 0 ? -errno : sent;
}

int tx_send(struct flood *flood, const struct iovec *frames, unsigned count)
{
  int sent = 0;
  if (!flood->forwarder) {
    return send_on_interface(flood, frames, count);
  }
  for (unsigned i = 0; i < count; i++) {
    sent += forwarder_put(flood->forwarder, FORWARDER_VICTIM, frames[i].iov_base,
                          (uint32_t)frames[i].iov_len, 0, false) == 0;
  }
  forwarder_flush(flood->forwarder, FORWARDER_VICTIM);
  return sent;
}

void tx_open(struct flood *flood)
{
  uint8_t frame[FLOOD_FRAME];
  if (flood->forwarder) {
    forwarder_pass(flood->forwarder);
    return;
  }
  for (int i = 0; i < HEARD; i++) {
    ssize_t length = recv(flood->fd, frame, sizeof frame, MSG_DONTWAIT);
    if (length <= 0) {
      return;
    }
    frame_seen(flood, frame, (size_t)length);
  }
}

void tx_wait(struct flood *flood, uint64_t until)
{
  uint64_t now = flood_now();
  if (!flood->forwarder) {
    struct timespec pause = {.tv_nsec = (long)(until > now ? until - now : 0)};
    nanosleep(&pause, NULL);
  }
  for (; flood->forwarder && now < until; now = flood_now()) {
    if (forwarder_pass(flood->forwarder) == 0) {
      forwarder_wait(flood->forwarder, -1, 1);
    }
  }
}
